"""Ways in which secrets appear around a training, and things that only look like secrets.

Every secret is made up, and unlike every other one, so that a test can look for each of them in what was recorded.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final


def made(number: int, length: int = 32, alphabet: str = "alnum") -> str:
    """Makes a secret, always the same one for a number."""
    digest = hashlib.sha512(f"secret {number}".encode()).digest() * 4
    letters = {
        "alnum": "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789",
        "hex": "0123456789abcdef",
        "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        "lower": "abcdefghijklmnopqrstuvwxyz",
        "odd": "abcXYZ789!$%*.~^",
    }[alphabet]
    return "".join(letters[byte % len(letters)] for byte in digest[:length])


def _basic(number: int) -> str:
    return base64.b64encode(f"user:{made(number, 18)}".encode()).decode()


def _pem(number: int, kind: str = "RSA ") -> str:
    lines = f"{made(number, 60)}\n{made(number + 1, 60)}"
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


VARIABLES: Final[dict[str, tuple[str, str]]] = {
    "HF_TOKEN": ("{}", made(1)),
    "HUGGING_FACE_HUB_TOKEN": ("{}", made(2)),
    "WANDB_API_KEY": ("{}", made(3, 40, "hex")),
    "AWS_SECRET_ACCESS_KEY": ("{}", made(4, 40)),
    "NCCL_AUTH_TOKEN": ("{}", made(5)),
    "TRAINWATCH_TOKEN": ("{}", made(6)),
    "TORCH_HUB_PROXY": ("http://me:{}@proxy:3128", made(7)),
    "CUDA_MIRROR": ("https://{}@mirror.example.org/simple", made(8)),
    "HF_ENDPOINT": ("https://hub.example.org/?token={}&x=1", made(9)),
    "TRANSFORMERS_CREDENTIALS": ("{}", made(10)),
    "SLURM_JWT": ("{}", made(11, 50)),
    "ACCELERATE_DB_PASSWORD": ("{}", made(12, 12, "lower")),
    "TORCH_STORE_URL": ("postgres://me:{}@db/logs", made(13, 14, "odd")),
    "NVIDIA_NGC": ("nvapi-{}", made(14, 60)),
    "OMP_NOTE": ("api_key={} and more", made(15)),
    "HF_DATASETS_NOTE": ('{{"password": "{}"}}', made(16, 11, "lower")),
    "CUDA_PASSPHRASE": ("{}", made(17, 10, "lower")),
    "HF_PIN_PASSWORD": ("{}", "73019462"),
}
"""Environment variables of names that are recorded: how the value is written, and the secret in it."""

COMMAND: Final[list[tuple[list[str], str]]] = [
    (["--hub-token", "{}"], made(30)),
    (["--hub_token={}"], made(31)),
    (["--api-key", "{}"], made(32, 9, "lower")),
    (["--password={}"], made(33, 10, "odd") + ",;)x"),
    (["--db.password", "{}"], "-" + made(34, 10)),
    (["--wandb_key", "{}"], made(35, 40, "hex")),
    (["+secrets.openai={}"], made(36)),
    (["-u", "user:{}"], made(37)),
    (["--header", "Authorization: Bearer {}"], made(38)),
    (["--data", "s3://bucket/x?X-Amz-Signature={}"], made(39, 64, "hex")),
    (["--repo", "https://oauth2:{}@gitlab.example.org/x.git"], made(40)),
    (["--aws_secret_access_key", "{}"], made(41, 40)),
    (["--opts", '{{"api_key":"{}"}}'], made(42)),
]
"""Arguments of a command line, and the secret in them."""

TEXTS: Final[list[tuple[str, str]]] = [
    ("401 for url https://user:{}@example.org/a", made(60)),
    ("git clone https://{}@github.com/a/b.git failed", made(61)),
    ("could not connect to postgres://me:{}@db:5432/x", made(62, 12, "odd")),
    ("mongodb+srv://me:{}@cluster0.example.net/?retryWrites=true", made(63)),
    ("redis://:{}@10.0.0.1:6379/0", made(64)),
    ("amqps://me:{}@mq/vhost", "p@ss/" + made(65, 10)),
    ("mysql+pymysql://me:{}@db/x", "in@the" + made(66, 10)),
    ("Authorization: Bearer {}", made(67)),
    ("headers={{'Authorization': 'Basic {}'}}", _basic(68)),
    ("{{'authorization': b'Token {}'}}", made(69)),
    ("curl -H 'X-Api-Key: {}'", made(70)),
    ("Cookie: theme=dark; session={}", made(71)),
    ("sent Bearer {} to the server", made(72)),
    ("key AKIA{} is not active", made(73, 16, "upper")),
    ("aws_secret_access_key = {}", made(74, 40)),
    ("ghp_{} was revoked", made(75, 36)),
    ("github_pat_{}", made(76, 70)),
    ("hf_{} has no access to this repo", made(77, 34)),
    ("Incorrect API key provided: sk-proj-{}.", made(78, 48)),
    ("sk-ant-api03-{}", made(79, 80)),
    ("xoxb-1234567890-{}", made(80, 24)),
    ("https://hooks.slack.com/services/T00000000/B00000000/{}", made(81, 24)),
    ("glpat-{}", made(82, 20)),
    ("AIza{}", made(83, 35)),
    ("DefaultEndpointsProtocol=https;AccountName=me;AccountKey={}==;EndpointSuffix=core.windows.net", made(84, 86)),
    ("https://me.blob.core.windows.net/c/b?sv=2024-01-01&sr=b&sig={}%3D&se=2026", made(85, 40)),
    ("wandb: ERROR api_key={}", made(86, 40, "hex")),
    ("npm_{}", made(87, 36)),
    ("//registry.npmjs.org/:_authToken={}", made(88)),
    ("--extra-index-url https://__token__:{}@pypi.example.org/simple", made(89)),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{}", made(90, 43)),
    ("token expired: eyJhbGciOiJIUzI1NiJ9.{}.x", made(91, 60)),
    ('{{"token": "{}", "lr": 1}}', made(92)),
    ("{{'hub_token': '{}', 'lr': 1}}", made(93)),
    ('config: {{\\"api_key\\": \\"{}\\"}}', made(94)),
    ('token="{}"', made(95, 9, "lower")),
    ("hub:\n  token: {}\n  name: x", made(96)),
    ("password: |\n    {}\n", made(97)),
    ("login(token='{}')", made(98)),
    ("Namespace(lr=1, api_key='{}', steps=3)", made(99)),
    ("environ({{'HF_TOKEN': '{}', 'HOME': '/root'}})", made(100)),
    ("HF_TOKEN={} python train.py", made(101)),
    ("export OPENAI_API_KEY={}", made(102)),
    ("?token={}&sig=1", made(103)),
    ("GET /file?X-Amz-Credential=A%2F1&X-Amz-Signature={}", made(104, 64, "hex")),
    ("GET /file?X-Amz-Security-Token={}&x=1", made(105, 80)),
    ("https://cdn.example.org/x?Policy=a&Signature={}&Key-Pair-Id=b", made(106, 60)),
    ("machine api.example.org login me password {}", made(107)),
    ("machine api.example.org\n  login me\n  password {}", made(108)),
    ('{{"auths": {{"ghcr.io": {{"auth": "{}"}}}}}}', _basic(109)),
    ("Server=db;User Id=me;Password={};Encrypt=yes", made(110, 12)),
    ("['train.py', '--api-key', '{}']", made(111)),
    ("('password', '{}')", made(112)),
    ("os.environ['WANDB_API_KEY'] = '{}'", made(113, 40, "hex")),
    ("<password>{}</password>", made(114)),
    ("SENTRY_DSN is https://{}@o1.ingest.sentry.io/2", made(115, 32, "hex")),
    ("ya29.{}", made(116, 60)),
    ("dapi{} (databricks)", made(117, 32, "hex")),
    ("Invalid token: {}", made(118)),
    ("client_secret={}", made(119)),
    ("pypi-AgEIcHlwaS5vcmc{}", made(120, 60)),
    ("gsk_{}", made(121, 52)),
    ("hvs.{}", made(122, 60)),
    ("SG.{}.abcdefghijklmnopqrst", made(123, 22)),
    ("discord.com/api/webhooks/123456789/{}", made(124, 60)),
    ("--private-key " + _pem(125).replace(made(125, 60), "{}"), made(125, 60)),
    (_pem(127, "OPENSSH ").replace(made(127, 60), "{}"), made(127, 60)),
    ('"private_key": "' + _pem(129, "").replace("\n", "\\n").replace(made(129, 60), "{}") + '"', made(129, 60)),
    ("ENV: name: DB_PASSWORD value: x, secret={}", made(131)),
    ("requests.get(url, auth=('me', 'x'), params={{'access_token': u'{}'}})", made(132)),
]
"""Texts as they come in error messages and tracebacks, and the secret in each."""

HARMLESS: Final[list[str]] = [
    "max_new_tokens=5",
    "num_tokens: 512, eos_token_id=2, pad_token_id=None",
    "tokenizer=LlamaTokenizerFast",
    "eos_token='<|im_end|>' pad_token=<pad>",
    "token_type_ids: tensor([0, 1])",
    "loss_per_token=3.25 next_token=17",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "run 123e4567-e89b-42d3-a456-426614174000",
    "/mnt/shared/users/somebody/experiments/2026-11-21/llama-3-8b-sft/checkpoint-12000/model-00001-of-00004.safetensors",
    "loss 2.7182818 grad_norm 1.4142135e+02 learning_rate=5e-05",
    "meta-llama/Llama-3.1-8B-Instruct",
    "sk-learn-models/regressor",
    "hf_device_map={'': 0}",
    "Token indices sequence length is longer than the maximum (600 > 512)",
    "KeyError: 'token'",
    "key=query_proj author=me keyboard=us monkey=1",
    "http://127.0.0.1:8420/run/7c1e5a04",
    "git@github.com:huggingface/trl.git ssh://git@github.com/huggingface/trl",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
    "RuntimeError: shape '[4, 512]' is invalid for input of size 2047",
    'File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl',
    "use_auth_token=True token=None password=''",
    "rank0:29500 cuda:0 s3://bucket/path@version",
    "Basic block of ResNet",
    "passes=3 passed: 4, first pass: fine, bypass_warnings=on",
    "PWD=/home/me OLDPWD=/",
    "label_names=['tokens', 'labels'] special_tokens_map.json",
    "image_token=<image> boi_token_index=255 mask_token=[MASK]",
    "sort_key=length cache_key=abc primary_key=id public_key=none",
]
"""What only looks like a secret."""
