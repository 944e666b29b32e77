"""POST /tokenize and /detokenize: what the server itself does to a prompt, without a model behind it."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagefleet_runtime.errors import invalid
from pagefleet_runtime.server.body import read_object
from pagefleet_runtime.server.errors import JSONAnswer
from pagefleet_runtime.server.openai_requests import DetokenizeRequest, TokenizeRequest, validated
from pagefleet_runtime.server.openai_responses import Json
from pagefleet_runtime.server.service import ModelText, Service, json_body
from pagefleet_runtime.server.validation import check_token_ids
from pagefleet_runtime.text.constraints import checked_tools


def tokenize_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """Return the token ids of a text or of a conversation."""
        service.caller(request)
        received = await read_object(request)
        fields = validated(TokenizeRequest, _given(received.values))
        service.check_model(fields.model or service.served_name)
        text = service.text.get()
        return JSONAnswer(await received.off_loop(lambda: _tokenized(fields, text)))

    @router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """Return the text of token ids, without special tokens."""
        service.caller(request)
        received = await read_object(request)
        fields = validated(DetokenizeRequest, _given(received.values))
        service.check_model(fields.model or service.served_name)
        text = service.text.get()
        check_token_ids(fields.tokens, text.info.vocab_size, "tokens")
        return JSONAnswer({"prompt": await received.off_loop(lambda: text.tokenizer.decode(fields.tokens))})

    return router


def _given(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _tokenized(fields: TokenizeRequest, text: ModelText) -> Json:
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("send exactly one of prompt and messages", "prompt")
    if fields.messages is not None:
        checked_tools(fields.tools)
        ids = text.chat_prompt.ids(fields.messages, fields.tools, fields.chat_template_kwargs)
    else:
        ids = text.tokenizer.encode(fields.prompt or "", add_special_tokens=fields.add_special_tokens)
    answer: Json = {"count": len(ids), "max_model_len": text.max_length_tokens, "tokens": ids}
    if fields.return_token_strs:
        answer["token_strs"] = [text.tokenizer.token_text(token_id) for token_id in ids]
    return answer
