"""What a message about an alert says around the alert's own sentence, in English and Chinese."""

from __future__ import annotations

from typing import Final

_PHRASES: Final[dict[str, tuple[str, str]]] = {
    "colon": (": ", "："),
    "info": ("Info", "提示"),
    "warning": ("Warning", "警告"),
    "critical": ("Critical", "严重"),
    "resolved": ("Resolved", "已恢复"),
    "raised": ("Now {severity}", "已升级为{severity}"),
    "digest": ("{count} alerts", "{count} 条告警"),
    "more": ("… and {count} more", "……以及另外 {count} 条"),
    "test": (
        "This is a test of the channel {name}. Alerts will arrive like this.",
        "这是对通知渠道 {name} 的测试。告警将以这种形式送达。",
    ),
    "test_title": ("Test", "测试"),
    "run": ("Run", "训练"),
    "project": ("Project", "项目"),
    "step": ("Step", "步"),
    "rank": ("Rank", "Rank"),
    "loss": ("Train loss", "训练损失"),
    "value": ("Value", "数值"),
    "rule": ("Rule", "规则"),
    "open_run": ("Open the run", "打开训练"),
    "open_settings": ("Alert settings", "告警设置"),
}


def phrase(name: str, language: str = "en", /, **values: object) -> str:
    """Returns a phrase.

    Args:
        name: Which one.
        language: ``"en"`` or ``"zh"``; anything else gives English.
        **values: What it names.
    """
    return _PHRASES[name][1 if language == "zh" else 0].format(**values)
