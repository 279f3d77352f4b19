"""How the trainers of the matrix are built, each as people build them; always without TrainWatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from tests.matrix import data
from tests.matrix.faults import POISON, Fault, plant
from tests.matrix.setup import BATCH, EVAL_EVERY, STEPS, Setup

# -- arguments -------------------------------------------------------------------------------------------------------


_NEW_SAMPLING = "train_sampling_strategy" in TrainingArguments.__dataclass_fields__
"""Since transformers 5."""


def settings(output: Path, setup: Setup, **more: Any) -> dict[str, Any]:
    """Returns arguments that all setups share. Clipping is at work in every step."""
    found = {
        "output_dir": str(output),
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 1,
        "gradient_accumulation_steps": setup.accumulation,
        "eval_strategy": "steps",
        "eval_steps": EVAL_EVERY,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "max_grad_norm": 0.1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "train_sampling_strategy": "sequential",
        "prediction_loss_only": True,
        **more,
    }
    if not _NEW_SAMPLING:
        found["group_by_length"] = found.pop("train_sampling_strategy") == "group_by_length"
    return found


def _in_order(kind: type[Trainer]) -> type[Trainer]:
    """Makes a Trainer take the samples in their order, which older releases can't be told to."""
    if _NEW_SAMPLING:
        return kind

    class InOrder(kind):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *args: Any) -> Any:
            if self.args.group_by_length or not hasattr(self.train_dataset, "__len__"):
                return super()._get_train_sampler(*args)
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return InOrder


def plain(
    output: Path,
    fault: Fault,
    setup: Setup,
    *,
    kind: type[Trainer] = Trainer,
    model: Any = None,
    dataset: Callable[[list[data.Sample]], Any] = list,
    arguments: TrainingArguments | None = None,
    **more: Any,
) -> Trainer:
    """The Trainer with a causal language model."""
    made = data.tiny_llama() if model is None else model
    plant(made, fault)
    return _in_order(kind)(
        model=made,
        args=arguments or TrainingArguments(**settings(output, setup, **more)),
        train_dataset=dataset(setup.training_samples(fault)),
        eval_dataset=setup.evaluation_samples(fault),
        data_collator=data.collate,
    )


# -- losses that are not the model's -----------------------------------------------------------------------------------


class Focal(Trainer):
    """A loss of its own, computed from the logits, although the model is given labels and returns a loss too."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        labels = inputs["labels"][:, 1:].flatten()
        each = torch.nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels, reduction="none")
        loss = ((1 - torch.exp(-each)) ** 2 * each).sum() / (labels != -100).sum()
        return (loss, outputs) if return_outputs else loss


class Scaled(Trainer):
    """The model's own loss, times a constant, plus a penalty: very common, and easily taken for the model's."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        loss = 2.0 * outputs.loss + 1e-3 * outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


def _loss_function(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    count = num_items_in_batch if num_items_in_batch is not None else (labels != -100).sum()
    logits = outputs.logits[:, :-1].flatten(0, 1)
    total: torch.Tensor = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return total / count


def own_loss(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, kind=Focal)


def scaled_loss(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, kind=Scaled)


def loss_function(output: Path, fault: Fault, setup: Setup) -> Trainer:
    trainer = plain(output, fault, setup)
    trainer.compute_loss_func = _loss_function
    return trainer


def smoothing(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, label_smoothing_factor=0.1)


# -- what is trained ---------------------------------------------------------------------------------------------------


def lora(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from peft import LoraConfig, get_peft_model

    base = data.tiny_llama()
    plant(base, fault)
    torch.manual_seed(0)
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    return _trained(output, fault, setup, model)


def _trained(output: Path, fault: Fault, setup: Setup, model: Any, **more: Any) -> Trainer:
    return _in_order(Trainer)(
        model=model,
        args=TrainingArguments(**settings(output, setup, **more)),
        train_dataset=setup.training_samples(fault),  # type: ignore[arg-type]
        eval_dataset=setup.evaluation_samples(fault),  # type: ignore[arg-type]
        data_collator=data.collate,
    )


def frozen(output: Path, fault: Fault, setup: Setup) -> Trainer:
    model = data.tiny_llama()
    for parameter in model.get_submodule("model.layers.0").parameters():
        parameter.requires_grad_(False)
    return plain(output, fault, setup, model=model)


def tied(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, model=data.tiny_llama(tie_word_embeddings=True))


# -- how it is computed ------------------------------------------------------------------------------------------------


def checkpointing(reentrant: bool) -> Callable[[Path, Fault, Setup], Trainer]:
    def build(output: Path, fault: Fault, setup: Setup) -> Trainer:
        kwargs = {"use_reentrant": reentrant}
        return plain(output, fault, setup, gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs)

    return build


def compiled(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, torch_compile=True, torch_compile_backend="aot_eager")


def half(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, bf16=True)


def stream(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, dataset=data.Stream, train_sampling_strategy="random")


def grouped(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, train_sampling_strategy="group_by_length")


def saving(output: Path, fault: Fault, setup: Setup) -> Trainer:
    return plain(output, fault, setup, save_strategy="steps", save_steps=3)


# -- several ranks -----------------------------------------------------------------------------------------------------


def sharded(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    config = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    arguments = TrainingArguments(**settings(output, setup, fsdp=True, fsdp_config=config))
    assert arguments.device.type == "cpu"
    # accelerate shards on accelerators only, though PyTorch does it on a CPU as well.
    PartialState().distributed_type = DistributedType.MULTI_GPU
    return plain(output, fault, setup, arguments=arguments)


def deepspeed(stage: int) -> Callable[[Path, Fault, Setup], Trainer]:
    def build(output: Path, fault: Fault, setup: Setup) -> Trainer:
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": setup.accumulation,
            "gradient_clipping": 0.1,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        }
        return plain(output, fault, setup, deepspeed=config)

    return build


# -- TRL ---------------------------------------------------------------------------------------------------------------


def sft(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model = data.tiny_llama()
    plant(model, fault)
    return SFTTrainer(
        model=model,
        args=SFTConfig(**settings(output, setup, max_length=32, bf16=False, gradient_checkpointing=False)),
        train_dataset=Dataset.from_list(setup.training_samples(fault)),
        eval_dataset=Dataset.from_list(setup.evaluation_samples(fault)),
        processing_class=data.tokenizer(),
    )


def _pairs(samples: list[data.Sample]) -> Any:
    from datasets import Dataset

    rows = []
    for sample in samples:
        tokens = sample["input_ids"]
        prompt = len(tokens) // 3 + 1
        rows.append(
            {
                "prompt": data.text(tokens[:prompt]) + " ",
                "chosen": data.text(tokens[prompt:]),
                "rejected": data.text(tokens[prompt:][::-1]),
            }
        )
    return Dataset.from_list(rows)


def dpo(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from trl import DPOConfig, DPOTrainer

    model = data.tiny_llama()
    plant(model, fault)
    return DPOTrainer(
        model=model,
        ref_model=data.tiny_llama(),
        args=DPOConfig(**settings(output, setup, bf16=False, gradient_checkpointing=False)),
        train_dataset=_pairs(setup.training_samples(fault)),
        eval_dataset=_pairs(setup.evaluation_samples(fault)),
        processing_class=data.tokenizer(),
    )


def dpo_lora(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    model = data.tiny_llama()
    plant(model, fault)
    return DPOTrainer(
        model=model,
        args=DPOConfig(**settings(output, setup, bf16=False, gradient_checkpointing=False)),
        train_dataset=_pairs(setup.training_samples(fault)),
        eval_dataset=_pairs(setup.evaluation_samples(fault)),
        processing_class=data.tokenizer(),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )


def _reward(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(set(completion.split()))) for completion in completions]


def grpo(output: Path, fault: Fault, setup: Setup) -> Trainer:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def prompts(samples: list[data.Sample]) -> Any:
        return Dataset.from_list([{"prompt": data.text(sample["input_ids"][:5])} for sample in samples])

    model = data.tiny_llama()
    plant(model, fault, spare_generation=True)
    arguments = settings(output, setup, bf16=False, gradient_checkpointing=False)
    arguments.pop("train_sampling_strategy")
    return GRPOTrainer(
        model=model,
        reward_funcs=_reward,
        args=GRPOConfig(
            **{**arguments, "per_device_eval_batch_size": 2},
            num_generations=2,
            max_completion_length=4,
            generation_kwargs={"suppress_tokens": [POISON]},
            shuffle_dataset=False,
        ),
        train_dataset=prompts(setup.training_samples(fault)),
        eval_dataset=prompts(setup.evaluation_samples(fault)),
        processing_class=data.tokenizer(),
    )
