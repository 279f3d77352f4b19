"""Takes secrets out of text: what a secret looks like, and which names announce one.

Every pattern is linear in the text: bounded repetitions, no nested ones. What is only likely a secret is hidden too; a
run's page can do without a word, its owner can't do without the password.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

HIDDEN: Final = "[redacted]"


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS: Final = _set(
    "secret secrets credential credentials creds passphrase apikey apikeys authorization cookie cookies pwd pgpass "
    "privatekey accesskey secretkey bearer jwt dsn webhook sas pass netrc kubeconfig"
)
_OWNERS_OF_KEYS: Final = _set(
    "api access secret private auth account wandb openai hf huggingface anthropic aws azure gcp google gemini comet "
    "neptune mlflow clearml ssh gpg pgp rsa encryption signing license deploy session app master subscription storage "
    "service shared crypt tls ssl client hmac"
)
_OWNERS_OF_TOKENS: Final = _OWNERS_OF_KEYS | _set(
    "hub bot refresh bearer id csrf xsrf oauth user write read github gitlab git slack telegram discord npm pypi "
    "security"
)
# "token" is a secret in HF_TOKEN, and none in eos_token, loss_per_token or token_type_ids.
_NOT_SECRET_BEFORE: Final = _set(
    "bos eos pad unk sep cls mask eot eod eom sot special image video audio speech vision text per num max min n next "
    "last first prev previous current cur start end stop begin prefix suffix middle boundary think response input "
    "output target source word sub each every number bad new decoder encoder"
)
_NOT_SECRET_AFTER: Final = _set(
    "id ids type types count counts embedding embeddings embed index indices idx level length len limit budget path "
    "file dir directory dropout mask weight weights prob probs logits logit loss accuracy name names classification "
    "reduction merging mixer size cap position positions drop rate ratio url uri"
)
_SPECIAL_TOKEN: Final = re.compile(r"<[^<>\s]{0,60}>|\[[A-Za-z_0-9 ]{1,40}\]|\W{1,8}|▁?</?\w{1,12}>?")
_HARMLESS: Final = re.compile(r"(?i:none|null|nil|true|false|undefined|empty|unset|yes|no|\*+|\.\.\.|)")
_NUMBER: Final = re.compile(r"[+-]?\d{1,10}(?:\.\d*)?(?:e[+-]?\d+)?|[+-]?\.\d+|nan|inf", re.IGNORECASE)

_PEM: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----|\Z)",
    re.DOTALL,
)
_URL_LOGINS: Final = (
    # user:password@, where the password may hold an @ (the last one counts) and a / or a further colon
    re.compile(r"(?<=://)[^\s/?#\"'<>@:]{0,256}:(?!\d{1,5}[/?])[^\s:\"'<>]{1,512}(?=@)"),
    re.compile(r"(?<=://)[^\s/?#\"'<>@:]{0,256}:[^\s/?#\"'<>]{0,512}(?=@)"),
    # A user alone is a token to a web server, except for the one that every git host has.
    re.compile(r"(?<=https://)(?!git@)[^\s/?#\"'<>@:]{1,512}(?=@)|(?<=http://)(?!git@)[^\s/?#\"'<>@:]{1,512}(?=@)"),
)
_QUERY: Final = re.compile(r"([?&;](?:amp;)?)([\w.%\[\]-]{1,80})=([^&#\s\"'<>\\]{1,4096})")
_QUERY_SECRETS: Final = _set("sig signature code key policy auth pass state")
_HEADER: Final = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\\{0,4}[\"']?[ \t]{0,4}[:=]"
    r"(?![ \t\"']{0,8}\[redacted\])[ \t]{0,4}[bu]?\\{0,4}[\"']?)"
    r"[^\r\n\"'\\]{1,4096}",
    re.IGNORECASE,
)
_BEARER: Final = re.compile(
    r"\b(Bearer|Basic|bearer|basic|BEARER)([ \t]{1,4})(?=[^\s\"']{0,64}[0-9A-Z=._-])[\w.~+/=-]{8,}"
)
_LOGIN_OPTION: Final = re.compile(r"(?<!\S)(-u|--user|--proxy-user|-U)([ =]{1,2})[^\s:\"']{1,128}:[^\s\"']{1,256}")
_NETRC: Final = re.compile(
    r"\b(login\s{1,8}\S{1,256}\s{1,8}password\s{1,8}|machine\s{1,8}\S{1,256}\s{1,8}password\s{1,8})\S{1,512}"
)
_XML: Final = re.compile(r"<([\w.:-]{1,80})>([^<>]{1,4096})(?=</)")
_TOKEN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:hf|gsk|r8|npm|api_org|tgp_v1|wandb_v1|pcsk|fw|esecret|secret|ops|glc|lin_api|rnd|shp(?:at|ca|pa|ss)|pat)_[A-Za-z0-9]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{12,}|github_pat_\w{12,}|gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[\w.-]{12,}"
    r"|sk-(?:proj|ant|or|svcacct|admin|lf|None)-[\w-]{8,}|(?:sk|pk|rk)-[A-Za-z0-9]{20,}|[spr]k_(?:live|test)_\w{8,}"
    r"|xox[abceoprs](?:\.xox[a-z])?-[\w-]{8,}|xapp-[\w-]{8,}|hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{4,}"
    r"|discord(?:app)?\.com/api/webhooks/[\w/-]{4,}|[\w-]{1,64}\.webhook\.office\.com/[\w/@.-]{4,}"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|GOCSPX-[\w-]{16,}|1//0[\w-]{30,}"
    r"|(?<![\w-])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*){0,3}|pypi-[\w-]{16,}|dop_v1_[a-f0-9]{16,}|dckr_(?:pat|oat)_[\w-]{12,}"
    r"|dapi[a-f0-9]{24,}(?:-\d)?|nvapi-[\w-]{16,}|lsv2_(?:pt|sk)_[\w]{16,}|pplx-[A-Za-z0-9]{16,}|xai-[A-Za-z0-9]{16,}"
    r"|hv[sbr]\.[\w-]{16,}|SG\.[\w-]{12,}\.[\w-]{12,}|ATATT[\w-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{16,}|sq0[a-z]{3}-[\w-]{16,}"
    r"|\d{8,10}:AA[\w-]{30,}|tskey-[\w-]{12,}|rubygems_[a-f0-9]{16,}|sess-[A-Za-z0-9]{24,}|[A-Za-z0-9_~.-]{3}8Q~[\w~.-]{31,}"
    r")"
)
_STEM: Final = "token|secret|pass|pwd|key|cred|auth|cookie|webhook|dsn|bearer|jwt|sas"
# A name and what comes between it and its value. The value has a pattern of its own, tried only behind secret names:
# in one pattern, text that repeats a harmless name would be read to its end at each of them.
_NAME: Final = re.compile(
    rf"(?:{_STEM})(?P<rest>[\w.-]{{0,60}})(?![\w.-])"
    r"(?P<separator>\\{0,4}[\"']?\]?[ \t]{0,4}(?:=>|:=|==|=|:(?!//))[ \t]{0,4}|(?P<gap>[ \t]{1,4})(?=[^\s-])|"
    r"(?P<pair>\\{0,4}[\"'],[ \t]{0,4}(?=[bu]?\\{0,4}[\"'])))",
    re.IGNORECASE,
)
_VALUE: Final = re.compile(
    r"[bBuUrRfF]{0,2}(?P<quote>\\{0,4}[\"'])(?P<inside>.{0,4096}?)(?P=quote)"
    r"|(?P<block>[|>][+-]?[ \t]{0,8}\r?\n[ \t]{1,32}\S{1,4096})"
    r"|(?P<bare>(?:[^\s\"',;&)}\]]|[,;&)}\]](?![\s\"',;&)}\]]|$|[\w.-]{1,40}[\"']?[=:])){1,4096})",
    re.DOTALL,
)
_NAME_CHARACTERS: Final = frozenset("_-.+")
_LONGEST_NAME: Final = 80


def scrub(text: str) -> str:
    """Takes secrets out of a text.

    Args:
        text: Any text; the time this takes is proportional to its length.

    Returns:
        The text with :data:`HIDDEN` in place of each secret.
    """
    if len(text) < 4:
        return text
    text = _known.without(text)
    if "-----BEGIN" in text:
        text = _PEM.sub(HIDDEN, text)
    if "://" in text:
        for login in _URL_LOGINS:
            text = login.sub(HIDDEN, text)
    if "=" in text:
        text = _QUERY.sub(_without_query, text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    text = _TOKEN.sub(HIDDEN, text)
    text = _LOGIN_OPTION.sub(rf"\1\2{HIDDEN}", text)
    text = _NETRC.sub(rf"\1{HIDDEN}", text)
    if "</" in text:
        text = _XML.sub(_without_xml, text)
    return _without_assignments(text)


def hides(name: str, value: object) -> bool:
    """Tells whether a value is a secret because of the name that it stands under.

    Args:
        name: ``"HF_TOKEN"``, ``"hub_token"``, ``"--api-key"``.
        value: The value; None, a truth value and an empty text are no secrets, and a number is none under ``token``.
    """
    if value is None or isinstance(value, bool):
        return False
    kind = _kind(name[-_LONGEST_NAME:])
    if not kind:
        return False
    if isinstance(value, int | float):
        return kind == "secret"
    if isinstance(value, str):
        return not _harmless(kind, name, value)
    return True


def learn(value: object) -> None:
    """Remembers a secret, so that it is hidden wherever it comes again: a bare key in an error message, say.

    Args:
        value: What stood under a name that announces a secret.
    """
    if isinstance(value, str):
        _known.learn(value)


class _Known:
    """Secrets of this process, seen under their names. In memory only."""

    _MOST: Final = 200

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def learn(self, value: str) -> None:
        # A short plain word, and a path, come again where they are no secret.
        distinctive = 8 <= len(value) <= 4096 and (len(value) >= 16 or not value.isalpha())
        if not distinctive or value[0] in "/~.<[" or value in self._values or len(self._values) >= self._MOST:
            return
        self._values.add(value)
        self._pattern = re.compile("|".join(re.escape(known) for known in sorted(self._values, key=len, reverse=True)))

    def without(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)


_known: Final = _Known()


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Returns "secret", "token" (perhaps a token of a vocabulary: the value tells), or "" for a harmless name."""
    words = [word.lower() for word in _WORDS.findall(name)]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if after in _NOT_SECRET_AFTER and word != "webhook":
            continue
        if _speaks_of_a_secret(before, word, after):
            return "secret"
        if word == "token" and before not in _NOT_SECRET_BEFORE:
            return "token"
        if (word == "tokens" and before in _OWNERS_OF_TOKENS) or (
            word.endswith("token") and word[:-5] in _OWNERS_OF_TOKENS
        ):
            return "token"
    return ""


def _speaks_of_a_secret(before: str, word: str, after: str) -> bool:
    if word == "pass":
        return not after and before not in ("forward", "backward")
    if word in ("key", "keys"):
        return before in _OWNERS_OF_KEYS
    if word in ("string", "signature"):
        return before in ("connection", "conn", "access")
    if word == "auth":
        return not after
    return word in _SECRET_WORDS or "passw" in word or "secret" in word


def _harmless(kind: str, name: str, value: str) -> bool:
    value = value.strip().strip("\"'")
    if _HARMLESS.fullmatch(value) or value == HIDDEN:
        return True
    if name.lstrip("-").lower() in ("pwd", "oldpwd"):
        return value.startswith(("/", "~")) or value[1:3] == ":\\"
    return kind == "token" and bool(_SPECIAL_TOKEN.fullmatch(value) or _NUMBER.fullmatch(value))


def _without_query(match: re.Match[str]) -> str:
    begin, name, value = match.groups()
    words = {word.lower() for word in _WORDS.findall(name)}
    secret = hides(name, value) or (words & _QUERY_SECRETS) or words >= {"amz", "credential"} or words >= {"key", "id"}
    return f"{begin}{name}={HIDDEN}" if secret and value != HIDDEN else match.group()


def _without_xml(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"<{name}>{HIDDEN}" if hides(name, value) else match.group()


def _without_assignments(text: str) -> str:
    """Hides the values of ``name=value``, ``"name": "value"``, ``--name value`` and their like."""
    parts: list[str] = []
    done = place = 0
    while match := _NAME.search(text, place):
        place = match.end("rest")
        name = _announced(text, match)
        value = _VALUE.match(text, match.end()) if name else None
        if name is None or value is None:
            continue
        group = value.lastgroup or "bare"
        if hides(name, value[group]):
            parts += [text[done : value.start(group)], HIDDEN]
            done = place = value.end(group)
        elif group == "bare":
            place = value.end()
    return "".join([*parts, text[done:]]) if parts else text


def _announced(text: str, match: re.Match[str]) -> str | None:
    """Returns the whole name behind which a secret may come, or None."""
    begin = match.start()
    lowest = max(0, begin - _LONGEST_NAME)
    while begin > lowest and (text[begin - 1].isalnum() or text[begin - 1] in _NAME_CHARACTERS):
        begin -= 1
    name = text[begin : match.end("rest")]
    if not _kind(name[-_LONGEST_NAME:]):
        return None
    option = name.startswith("-")
    if match["gap"] is not None and not option:
        return None
    if match["pair"] is not None and not option and not _opens_a_pair(text, begin):
        return None
    if name == "pass" and "=" not in match["separator"]:  # "First pass: …"
        return None
    return name


def _opens_a_pair(text: str, begin: int) -> bool:
    before = text[max(0, begin - 8) : begin].rstrip("\"'\\ \tbu")
    return before.endswith("(")
