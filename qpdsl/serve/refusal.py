"""Why a request is not answered, in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """A request that is not answered: an HTTP status, and the body `{"error": {"message", "type", "param", "code"}}`.

    `param` names the field of the body that is at fault. `retry_after`: in how many seconds to ask again.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def type(self) -> str:
        """The class of the error, as OpenAI names it."""
        match self.status:
            case 401:
                return "authentication_error"
            case 422:
                return "program_error"
            case 429:
                return "rate_limit_error"
            case status if status < 500:
                return "invalid_request_error"
        return "server_error"

    def body(self) -> dict[str, Any]:
        """The body of the answer, and of an error event in a stream."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
