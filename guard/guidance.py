"""What the guard says to the model, and asks people. The sentences are data; nothing here decides anything.

Each text is one line that begins with `[guard]`, says what was tried, what came of it and how often, and ends with what
to do next. Wordings alternate, so that a model never reads the same words twice in a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import GuardAction
from guard.policy import INVALID_ARGUMENTS, UNKNOWN_TOOL, Language
from guard.results import OWN_WORDS


@dataclass(frozen=True, slots=True)
class Said:
    """The values that a sentence may name."""

    tool: str
    occurrence: int
    first_step: int
    excerpt: str = ""
    """The first result or error of the call, one line."""
    code: str = ""
    detail: str = ""
    halt_number: int = 0
    mends: str = ""
    """The error code, where the call itself is to be mended."""
    is_json: bool = True
    """Whether the arguments could be read."""


Wordings = tuple[str, str]

_SEEN: Final[dict[Language, dict[ReasonCode, Wordings]]] = {
    Language.ENGLISH: {
        ReasonCode.REPEATED_CALL: (
            "This is call number {occurrence} of {tool} like the one at step {first_step}; nothing changed.",
            "{tool} was already asked this at step {first_step}; this makes {occurrence} times.",
        ),
        ReasonCode.CYCLE: (
            "The same few calls go round in a circle, now in lap {occurrence}.",
            "You are repeating one sequence of calls; this is its lap {occurrence}.",
        ),
        ReasonCode.JITTER: (
            "{occurrence} calls of {tool} differ only in their numbers, and it made no difference.",
            "Changing the numbers of {tool} has not helped in {occurrence} tries.",
        ),
        ReasonCode.STALE_RESULTS: (
            "The last {occurrence} calls brought nothing that you had not seen.",
            "Nothing new has come from {occurrence} calls in a row.",
        ),
        ReasonCode.REPEATED_ERROR: (
            "{tool} failed {occurrence} times in a row with {code}.",
            "{occurrence} calls of {tool} in a row ended in {code}.",
        ),
        ReasonCode.STEP_BUDGET: ("The step budget of this task is spent.", "No steps are left for this task."),
        ReasonCode.TOOL_BUDGET: ("{tool} may not be called again in this task.", "The limit for {tool} is reached."),
        ReasonCode.TOKEN_BUDGET: ("The token budget of this task is spent.", "No tokens are left for this task."),
        ReasonCode.COST_BUDGET: ("The money for this task is spent.", "This task has reached its cost limit."),
        ReasonCode.TIME_BUDGET: ("The time for this task is over.", "This task has reached its time limit."),
        ReasonCode.TOOL_BANNED: ("{tool} is closed for this task.", "This task goes on without {tool}."),
        ReasonCode.RULE: ("{detail}", "A rule applies: {detail}"),
        ReasonCode.APPROVAL_NEEDED: (
            "A person has to agree before {tool} runs. It has not run yet.",
            "{tool} waits for a person's consent and has not run.",
        ),
        ReasonCode.RUN_CANCELLED: ("This run was cancelled.", "This run has been called off."),
        ReasonCode.RUN_PAUSED: ("This run is paused.", "This run is on hold for now."),
    },
    Language.CHINESE: {
        ReasonCode.REPEATED_CALL: (
            "这是第 {occurrence} 次用相同内容调用 {tool}（首次见第 {first_step} 步），结果没有变化。",
            "{tool} 在第 {first_step} 步已经这样调用过，算上这次共 {occurrence} 次。",
        ),
        ReasonCode.CYCLE: (
            "同样几个调用在循环，现在是第 {occurrence} 圈。",
            "你在重复同一串调用，已到第 {occurrence} 圈。",
        ),
        ReasonCode.JITTER: (
            "{tool} 的 {occurrence} 次调用只改了数字，结果没有区别。",
            "{tool} 换了 {occurrence} 次数值，都没有帮助。",
        ),
        ReasonCode.STALE_RESULTS: (
            "最近 {occurrence} 次调用没有带来任何新内容。",
            "连续 {occurrence} 次调用的结果都已经见过。",
        ),
        ReasonCode.REPEATED_ERROR: (
            "{tool} 连续 {occurrence} 次失败，错误码 {code}。",
            "{tool} 连续 {occurrence} 次都以 {code} 结束。",
        ),
        ReasonCode.STEP_BUDGET: ("本任务的步数已用完。", "本任务没有剩余步数。"),
        ReasonCode.TOOL_BUDGET: ("本任务不能再调用 {tool}。", "{tool} 的次数上限已到。"),
        ReasonCode.TOKEN_BUDGET: ("本任务的 token 已用完。", "本任务没有剩余 token。"),
        ReasonCode.COST_BUDGET: ("本任务的费用已用完。", "本任务已到费用上限。"),
        ReasonCode.TIME_BUDGET: ("本任务的时间已用完。", "本任务已到时间上限。"),
        ReasonCode.TOOL_BANNED: ("{tool} 在本任务中已关闭。", "本任务不再提供 {tool}。"),
        ReasonCode.RULE: ("{detail}", "触发规则：{detail}"),
        ReasonCode.APPROVAL_NEEDED: (
            "{tool} 需经人工同意才能执行，目前尚未执行。",
            "{tool} 正在等待人工同意，没有执行。",
        ),
        ReasonCode.RUN_CANCELLED: ("本次运行已取消。", "本次运行已被终止。"),
        ReasonCode.RUN_PAUSED: ("本次运行已暂停。", "本次运行暂时停住。"),
    },
}

_NEXT: Final[dict[Language, dict[GuardAction, Wordings]]] = {
    Language.ENGLISH: {
        GuardAction.ALLOW: ("Carry on.", "Go ahead."),
        GuardAction.WARN: (
            "Do something different now: use what you have, or try another tool.",
            "More tries like this will be stopped. Change the approach, or answer with what you know.",
        ),
        GuardAction.BLOCK: (
            "The call was not run. Work with the results you have, or take another way.",
            "Not run. Do not send it again; answer with what you know, or use another tool.",
        ),
        GuardAction.HALT: (
            "The run stops here and everything found so far is kept.",
            "This ends the turn; what was found is kept.",
        ),
    },
    Language.CHINESE: {
        GuardAction.ALLOW: ("请继续。", "可以继续。"),
        GuardAction.WARN: (
            "请换一种做法：利用已有结果，或改用其他工具。",
            "再这样调用会被停止。请改变方法，或根据已知内容作答。",
        ),
        GuardAction.BLOCK: (
            "本次调用没有执行。请利用已有结果，或另寻办法。",
            "未执行。不要再次发送；请根据已知内容作答，或使用其他工具。",
        ),
        GuardAction.HALT: ("运行到此停止，已有成果全部保留。", "本轮结束，已找到的内容都会保留。"),
    },
}

_UNBROKEN: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: (
        "This is call number {occurrence} in a row of {tool} with the same arguments.",
        "{tool} was called {occurrence} times in a row with the same arguments.",
    ),
    Language.CHINESE: (
        "这是连续第 {occurrence} 次用相同参数调用 {tool}。",
        "{tool} 已连续 {occurrence} 次用相同参数调用。",
    ),
}
"""Whatever the results were: they may well have changed."""

_NO_TOOL: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: (
        "There is no tool {tool}; this is call number {occurrence} in a row of a tool that does not exist.",
        "{occurrence} calls in a row named tools that do not exist, {tool} among them.",
    ),
    Language.CHINESE: (
        "没有 {tool} 这个工具；这是连续第 {occurrence} 次调用不存在的工具。",
        "连续 {occurrence} 次调用了不存在的工具，其中有 {tool}。",
    ),
}
"""Invented names share one row, so none of them failed so often itself."""

_NO_JSON: Final = "no JSON"
_MENDS: Final[dict[Language, dict[str, Wordings]]] = {
    Language.ENGLISH: {
        _NO_JSON: (
            "Write the arguments anew as one JSON object and nothing else.",
            "Send a shorter JSON object, with every text in double quotes and every bracket closed.",
        ),
        INVALID_ARGUMENTS: (
            "Compare names and types of the arguments with the tool's description, and change what does not fit.",
            "Look up in the error which argument is wrong or missing, and correct that one.",
        ),
        UNKNOWN_TOOL: (
            "Use only names from the list of tools.",
            "Choose a tool that is listed, or answer with what you know.",
        ),
    },
    Language.CHINESE: {
        _NO_JSON: (
            "请重新写参数：只写一个 JSON 对象，不要写别的。",
            "请发送更短的 JSON 对象：文本都加双引号，括号都要闭合。",
        ),
        INVALID_ARGUMENTS: (
            "请对照工具说明检查参数的名称和类型，改正不符之处。",
            "请看错误里指出哪个参数不对或缺失，只改正那一个。",
        ),
        UNKNOWN_TOOL: ("只能使用工具列表里的名称。", "请从列表中选一个工具，或根据已知内容作答。"),
    },
}
"""What to do next about a call that cannot run as it was written."""

_NOT_RUN: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: ("The call was not run.", "Not run."),
    Language.CHINESE: ("本次调用没有执行。", "未执行。"),
}

_RULE_FAILED: Final[dict[Language, str]] = {
    Language.ENGLISH: "A rule could not be evaluated, and this call changes things.",
    Language.CHINESE: "有一条规则无法判断，而这次调用会造成改动。",
}

_BUDGETS: Final[dict[Language, dict[ReasonCode, str]]] = {
    Language.ENGLISH: {
        ReasonCode.STEP_BUDGET: "steps",
        ReasonCode.TOOL_BUDGET: "calls of {tool}",
        ReasonCode.TOKEN_BUDGET: "tokens",
        ReasonCode.COST_BUDGET: "money",
        ReasonCode.TIME_BUDGET: "time",
    },
    Language.CHINESE: {
        ReasonCode.STEP_BUDGET: "步数",
        ReasonCode.TOOL_BUDGET: " {tool} 的次数",
        ReasonCode.TOKEN_BUDGET: " token ",
        ReasonCode.COST_BUDGET: "费用",
        ReasonCode.TIME_BUDGET: "时间",
    },
}

_WITHOUT: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: (
        "{tools} is closed for the rest of this run. Go on without it, with what you have.",
        "From here on this run has no {tools}. Use what was found so far, or another tool.",
    ),
    Language.CHINESE: (
        "{tools} 在本次运行余下的部分已关闭。请不用它，凭已有结果继续。",
        "从现在起本次运行不再提供 {tools}。请利用已有结果，或改用其他工具。",
    ),
}

_FIRST: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: ('The first answer was "{excerpt}".', 'It first answered "{excerpt}".'),
    Language.CHINESE: ("首次结果：“{excerpt}”。", "当时的结果：“{excerpt}”。"),
}

_DONE: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: ("This was already done at step {first_step}.", "Step {first_step} has already done this."),
    Language.CHINESE: ("这一步在第 {first_step} 步已经完成。", "第 {first_step} 步已经做过这件事。"),
}

_AGAIN: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: (
        "It is stop number {halt_number} of this run.",
        "This run has now been stopped {halt_number} times.",
    ),
    Language.CHINESE: ("这是本次运行第 {halt_number} 次停止。", "本次运行已停止 {halt_number} 次。"),
}

_ENDED: Final[dict[Language, Wordings]] = {
    Language.ENGLISH: (
        "This run has been stopped; no further call is run. Answer with what you know.",
        "No calls are run any more: the run stands still. Give the answer that you have.",
    ),
    Language.CHINESE: (
        "本次运行已停止，不再执行任何调用。请根据已知内容作答。",
        "运行处于停止状态，不会再执行调用。请给出现有答案。",
    ),
}

_STOPS: Final = ".。…"

_HINTS: Final[dict[Language, dict[str, Wordings]]] = {
    Language.ENGLISH: {
        INVALID_ARGUMENTS: (
            "The arguments are not valid JSON. Send one JSON object, with every text in double quotes.",
            "Arguments could not be read as JSON. Check quotes, commas and closing brackets, then send them once more.",
        ),
        UNKNOWN_TOOL: (
            "There is no tool of this name. Use one from the list.",
            "No such tool exists; choose a listed one.",
        ),
    },
    Language.CHINESE: {
        INVALID_ARGUMENTS: (
            "参数不是合法的 JSON。请发送一个 JSON 对象，所有文本用双引号。",
            "无法按 JSON 读取参数。请检查引号、逗号和括号后再发一次。",
        ),
        UNKNOWN_TOOL: ("没有这个名字的工具，请从列表中选择。", "该工具不存在；请改用列表里的工具。"),
    },
}

_QUESTIONS: Final[dict[Language, dict[str, str]]] = {
    Language.ENGLISH: {
        "error": "{tool} failed {occurrence} times in a row with {code}. What should the run do instead?",
        "loop": "{tool} was called {occurrence} times without getting further. How should the run go on?",
        "no_tool": "The agent called tools that do not exist {occurrence} times in a row, the latest was {tool}. "
        "What should it do instead?",
        "closed": "The agent asked {occurrence} times for {tool}, which is closed to it. How should the run go on?",
        "budget": "The run has spent its budget of {budget}. Should it get more, or end with what it has?",
        "rule": "A rule stopped {tool}: {detail}. How should the run go on?",
        "approval": "The agent wants to call {tool}, which needs your consent. May it run as it stands?",
    },
    Language.CHINESE: {
        "error": "{tool} 连续 {occurrence} 次失败，错误码 {code}。运行应当改做什么？",
        "loop": "{tool} 已调用 {occurrence} 次而没有进展。运行应当如何继续？",
        "no_tool": "智能体连续 {occurrence} 次调用不存在的工具，最近一次是 {tool}。它应当改做什么？",
        "closed": "智能体 {occurrence} 次要求使用已关闭的 {tool}。运行应当如何继续？",
        "budget": "运行已用完预算内的{budget}。是追加预算，还是以现有结果结束？",
        "rule": "规则停止了 {tool}：{detail}。运行应当如何继续？",
        "approval": "智能体想调用 {tool}，需要您同意。可以照此执行吗？",
    },
}


def guidance(finding: Finding, action: GuardAction, said: Said, language: Language, spoken: int, *, done: bool) -> str:
    """The text for the model; `spoken` counts the texts before it and picks the wording.

    `done` says that the call is a write that has succeeded.
    """
    pick = spoken % 2
    parts = [_DONE[language][pick] if done else _seen(finding, said, language)[pick]]
    quotes = (ReasonCode.REPEATED_CALL, ReasonCode.JITTER, ReasonCode.REPEATED_ERROR)
    is_of_results = finding.detector is not Detector.RUN and said.code != UNKNOWN_TOOL
    if said.excerpt and finding.reason in quotes and is_of_results:
        parts.append(_FIRST[language][pick])
    if said.halt_number > 1:
        parts.append(_AGAIN[language][pick])
    parts += _next(action, said, language, pick)
    return _line(parts, said, language)


def _seen(finding: Finding, said: Said, language: Language) -> Wordings:
    """What was tried, and how often."""
    if said.code == UNKNOWN_TOOL:
        return _NO_TOOL[language]
    if finding.detector is Detector.RUN and finding.reason is ReasonCode.REPEATED_CALL:
        return _UNBROKEN[language]
    return _SEEN[language][finding.reason]


def _next(action: GuardAction, said: Said, language: Language, pick: int) -> list[str]:
    """What to do: mend the call where the model wrote it wrongly, something else where it was right."""
    mends = _MENDS[language].get((said.mends or said.code) if said.is_json else _NO_JSON)
    if mends is None or action is GuardAction.HALT:
        return [_NEXT[language][action][pick]]
    return [_NOT_RUN[language][pick], mends[pick]] if action is GuardAction.BLOCK else [mends[pick]]


def without_tools(halted: str | None, tools: Iterable[str], language: Language, spoken: int) -> str:
    """What the model is told when a run goes on without `tools`; `halted`, the text of the halt, says what was tried."""
    told = _WITHOUT[language][spoken % 2].format(tools=(", " if language is Language.ENGLISH else "、").join(tools))
    for stops in _NEXT[language][GuardAction.HALT]:
        if halted is not None and halted.endswith(stops):
            return halted.removesuffix(stops) + told
    return f"{OWN_WORDS} {told}"


def rule_failed(language: Language) -> str:
    """Why a mutating call is refused when a rule raised."""
    return _RULE_FAILED[language]


def ended(language: Language, spoken: int) -> str:
    """What a call is told that comes after a halt."""
    return f"{OWN_WORDS} {_ENDED[language][spoken % 2]}"


def hint(code: str, language: Language, spoken: int) -> str:
    """What is wrong with a call that cannot run: `INVALID_ARGUMENTS` or `UNKNOWN_TOOL`."""
    return f"{OWN_WORDS} {_HINTS[language][code][spoken % 2]}"


def question(finding: Finding, said: Said, language: Language) -> str:
    """What a person is asked when this finding stopped the run."""
    if finding.reason is ReasonCode.APPROVAL_NEEDED:
        kind = "approval"
    elif said.code == UNKNOWN_TOOL:
        kind = "no_tool"
    elif finding.reason is ReasonCode.TOOL_BANNED:
        kind = "closed"
    elif finding.reason is ReasonCode.REPEATED_ERROR or said.code:
        kind = "error"
    elif finding.reason is ReasonCode.RULE:
        kind = "rule"
    elif finding.reason in _BUDGETS[language]:
        kind = "budget"
    else:
        kind = "loop"
    return _QUESTIONS[language][kind].format(
        tool=said.tool,
        occurrence=said.occurrence,
        code=said.code,
        detail=said.detail.strip().rstrip(_STOPS),
        budget=_BUDGETS[language].get(finding.reason, "").format(tool=said.tool),
    )


def _sentence(text: str, language: Language) -> str:
    """A rule's reason with a full stop, so that what follows is a sentence of its own."""
    text = text.strip()
    return text if not text or text[-1] in _STOPS + "!?！？" else text + ("." if language is Language.ENGLISH else "。")


def _line(parts: list[str], said: Said, language: Language) -> str:
    gap = " " if language is Language.ENGLISH else ""
    text = gap.join(parts).format(
        tool=said.tool,
        occurrence=said.occurrence,
        first_step=said.first_step,
        excerpt=said.excerpt,
        code=said.code,
        detail=_sentence(said.detail, language),
        halt_number=said.halt_number,
    )
    return f"{OWN_WORDS} {' '.join(text.split())}"
