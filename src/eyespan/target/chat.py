"""Chat messages: from a caller's prompt to what the processor encodes, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from eyespan.errors import InputError
from eyespan.target.base import Message

if TYPE_CHECKING:
    from PIL.Image import Image

    from eyespan.target.video import Clip

_PART_TYPES = ("text", "image", "video")


def as_messages(
    prompt: str | Sequence[Message], images: Sequence[Image], videos: Sequence[Clip] = ()
) -> list[dict[str, Any]]:
    """Messages with a list of parts each, pictures and videos in their places.

    Args:
        prompt: one user text, or messages. Media of a plain text, or of a chat with one user turn
            and no media part, stand before the text, pictures first; otherwise parts say where.
        images: in the order of their places.
        videos: in the order of theirs.

    Raises:
        InputError: nothing to say, an unknown part, or counts that differ.
    """
    turns: list[Message] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else _turns(prompt)
    )
    messages: list[dict[str, Any]] = [
        {"role": _role(turn), "content": list(_parts(turn))} for turn in turns
    ]
    given = {"image": len(images), "video": len(videos)}
    users = [message for message in messages if message["role"] == "user"]
    if len(users) == 1 and all(part["type"] == "text" for part in _all_parts(messages)):
        users[0]["content"][:0] = [{"type": kind} for kind in given for _ in range(given[kind])]
    for kind, count in given.items():
        places = sum(part["type"] == kind for part in _all_parts(messages))
        if places != count:
            name = "picture" if kind == "image" else kind
            raise InputError(
                f"{count} {kind}(s)",
                found=f"{places} place(s) for them in the prompt",
                needed=f"every {name} needs one place and every place one {name}",
                todo=f'Put {{"type": "{kind}"}} parts where the {name}s belong, in order.',
            )
    texts = [part["text"] for part in _all_parts(messages) if part["type"] == "text"]
    if not any(given.values()) and not any(text.strip() for text in texts):
        raise InputError(
            "a prompt",
            found="no text and no image",
            needed="at least one of them is needed",
            todo="Say something.",
        )
    return messages


def check_text(messages: Sequence[Message], tokenizer: Any, media_ids: frozenset[int]) -> None:
    """Refuse text that spells a placeholder: it would take a picture's place or fake one.

    The text is tokenised as the model would read it, so every spelling that the tokenizer folds
    into a media token is caught.

    Raises:
        InputError: naming the token.
    """
    written = [part["text"] for part in _all_parts(messages) if part["type"] == "text"]
    written += [message["role"] for message in messages]
    # templates put parts side by side: what one begins to spell, the next may end
    written += ["".join(part.get("text", "") for part in turn["content"]) for turn in messages]
    for text in dict.fromkeys(written):
        if not _is_unicode(text):
            raise _bad_message("text with half a surrogate pair", "valid Unicode is needed")
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        spelled = sorted(media_ids.intersection(ids))
        if spelled:
            names = ", ".join(repr(tokenizer.convert_ids_to_tokens(i)) for i in spelled)
            raise InputError(
                "a prompt",
                found=f"its text spells {names}",
                needed="ids that stand for media or padding come from the chat template only",
                todo="Take it out of the text; pictures go into images=.",
            )


def encode(
    messages: Sequence[Message],
    images: Sequence[Image],
    videos: Sequence[Clip],
    processor: Any,
    marks: Mapping[str, str] | None,
) -> Mapping[str, Any]:
    """The processor's tensors for a checked chat.

    Args:
        messages: what `as_messages` returned.
        images: in the order of their places.
        videos: in the order of theirs.
        processor: the model's processor; a tokenizer for text alone.
        marks: how a picture ("image") and a video ("video") are written without a chat template;
            None for text alone.

    With a chat template this is stock's own path, so the prompt is stock's own. Without one, a
    single user turn becomes plain text; several turns are refused, since guessing their format
    would silently change answers.

    Raises:
        InputError: several turns and no chat template, or what the processor itself refuses: an
            order of roles, a picture one pixel wide.
    """
    try:
        return _encode(messages, images, videos, processor, marks)
    except (ValueError, TemplateError) as error:
        if isinstance(error, InputError):
            raise
        films = f", {len(videos)} video(s)" if videos else ""
        raise InputError(
            f"a chat of {len(messages)} message(s) and {len(images)} image(s){films}",
            found=f"the model's own processor refuses it ({error})",
            needed="roles in the order its chat template knows and ordinary pictures are needed",
            todo="Change the messages or the pictures.",
        ) from None


def _encode(
    messages: Sequence[Message],
    images: Sequence[Image],
    videos: Sequence[Clip],
    processor: Any,
    marks: Mapping[str, str] | None,
) -> Mapping[str, Any]:
    if processor.chat_template and videos:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return _with_videos(text, images, videos, processor)
    if processor.chat_template:
        filled = _with_pictures(messages, images) if marks is not None else _as_strings(messages)
        encoded: Mapping[str, Any] = processor.apply_chat_template(
            filled,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        return encoded
    if len(messages) != 1:
        raise InputError(
            f"a chat of {len(messages)} messages",
            found="the model's folder has no chat template",
            needed="one is needed to write several turns as text",
            todo="Send one text, or add chat_template.jinja to the folder.",
        )
    said = messages[0]["content"]
    text = "".join(part.get("text") or (marks or {}).get(part["type"], "") for part in said)
    if marks is None:
        plain: Mapping[str, Any] = processor(text, return_tensors="pt")
        return plain
    if videos:
        return _with_videos(text, images, videos, processor)
    with_images: Mapping[str, Any] = processor(
        text=[text], images=list(images) or None, return_tensors="pt"
    )
    return with_images


def _with_videos(
    text: str, images: Sequence[Image], videos: Sequence[Clip], processor: Any
) -> Mapping[str, Any]:
    """What stock makes of a rendered text and frames that are sampled already."""
    from transformers.video_utils import VideoMetadata

    about = [
        VideoMetadata(
            total_num_frames=clip.total,
            fps=clip.rate,
            duration=clip.total / clip.rate if clip.rate else None,
            height=clip.frames.shape[1],
            width=clip.frames.shape[2],
            frames_indices=list(clip.indices),
        )
        for clip in videos
    ]
    start = processor.tokenizer.bos_token
    begun = {"add_special_tokens": False} if start and text.startswith(start) else {}
    encoded: Mapping[str, Any] = processor(
        text=[text],
        images=list(images) or None,
        videos=[clip.frames for clip in videos],
        video_metadata=about,
        do_sample_frames=False,
        return_tensors="pt",
        **begun,
    )
    return encoded


def _with_pictures(messages: Sequence[Message], images: Sequence[Image]) -> list[dict[str, Any]]:
    """The messages with each image part holding its picture."""
    waiting = iter(images)
    return [
        {
            "role": message["role"],
            "content": [
                {"type": "image", "image": next(waiting)} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        for message in messages
    ]


def _as_strings(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The messages as text-only templates read them."""
    return [
        {"role": message["role"], "content": "".join(part["text"] for part in message["content"])}
        for message in messages
    ]


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as bytes; file names and JSON may hold half characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _turns(prompt: Any) -> list[Message]:
    """The messages of a chat, or one sentence."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, str)):
        raise _bad_message(f"a {type(prompt).__name__}", "text or a list of messages is needed")
    for turn in prompt:
        if not isinstance(turn, Mapping):
            raise _bad_message(f"{turn!r:.40} among its messages", "each must be a mapping")
    return list(prompt)


def _role(message: Message) -> str:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _bad_message(f"a message with role {role!r}", "a role such as 'user' is needed")
    return role


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    if not isinstance(content, Sequence):
        raise _bad_message(f"content {content!r}", "text or a list of parts is needed")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _PART_TYPES or (kind == "text" and not isinstance(part.get("text"), str)):
            raise _bad_message(f"a part {part!r}", f"known types are {', '.join(_PART_TYPES)}")
        yield {"type": "text", "text": part["text"]} if kind == "text" else {"type": kind}


def _all_parts(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        yield from message["content"]


def _bad_message(found: str, needed: str) -> InputError:
    return InputError(
        "a chat",
        found=found,
        needed=needed,
        todo='Messages look like {"role": "user", "content": "..."}.',
    )
