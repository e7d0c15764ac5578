"""An identity provider in a process of its own: Authlib's server behind Flask.

    python -m tests.service.single_sign_on.identity_provider PORT

`POST /control` changes what it says next: whose sign-in it is, the groups, the clock, the keys.
"""

import sys
import time
from typing import Any, ClassVar, Final

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import grants
from authlib.oauth2.rfc6749.models import AuthorizationCodeMixin, ClientMixin
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import UserInfo
from authlib.oidc.core.grants import OpenIDCode
from flask import Flask, Response, jsonify, request
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT: Final = "dpledger-pages"
SECRET: Final = "a-secret-of-the-client"  # noqa: S105 (of the tests)
SUBJECT: Final = "system:serviceaccount:training:trainer"
BITS: Final = 2048


class Registered(ClientMixin):  # type: ignore[misc]
    """The one client."""

    client_id = CLIENT

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> str:
        return ""

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri.endswith("/answer")

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return endpoint == "token" and method in ("client_secret_basic", "none")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


class Code(AuthorizationCodeMixin):  # type: ignore[misc]
    """A code that was given out."""

    def __init__(self, asked: Any) -> None:
        self.redirect_uri = asked.payload.redirect_uri
        self.scope = asked.payload.scope
        self.nonce = asked.payload.data.get("nonce")
        self.code_challenge = asked.payload.data.get("code_challenge")
        self.code_challenge_method = asked.payload.data.get("code_challenge_method")
        self.auth_time = int(time.time())

    def get_redirect_uri(self) -> str:
        return str(self.redirect_uri)

    def get_scope(self) -> str:
        return str(self.scope)

    def get_nonce(self) -> Any:
        return self.nonce

    def get_auth_time(self) -> int:
        return self.auth_time

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


class Provider:
    """What the provider knows and how it signs."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.codes: dict[str, Code] = {}
        self.keys = [self._new_key()]
        self.state: dict[str, Any] = {
            "subject": "dana",
            "groups": ["officers"],
            "skew": 0,
            "id_token": {},  # claims instead of its own
            "answers": True,
            "reads": 0,
            "deny": False,
        }

    @staticmethod
    def _new_key() -> RSAKey:
        key = RSAKey.generate_key(BITS, {"use": "sig"})
        key.ensure_kid()
        return key

    def rotate(self, *, keep: int = 1) -> None:
        self.keys = [self._new_key(), *self.keys[:keep]]

    def signed(self, claims: dict[str, Any], *, key: RSAKey | None = None) -> str:
        signing = key or self.keys[0]
        return jwt.encode({"alg": "RS256", "kid": signing.kid}, claims, signing)

    def token(self, asked: dict[str, Any]) -> str:
        """A token as a pod has one."""
        present = int(time.time()) + self.state["skew"]
        claims = {
            "iss": self.issuer, "aud": ["dpledger"], "sub": SUBJECT,
            "iat": present, "nbf": present, "exp": present + 600,
        }  # fmt: skip
        return self.signed({k: v for k, v in (claims | asked).items() if v is not None})


class CodeGrant(grants.AuthorizationCodeGrant):  # type: ignore[misc]
    """Codes of this provider."""

    TOKEN_ENDPOINT_AUTH_METHODS: Final = ["client_secret_basic", "none"]
    house: ClassVar[Provider]

    def save_authorization_code(self, code: str, request: Any) -> None:
        self.house.codes[code] = Code(request)

    def query_authorization_code(self, code: str, client: Any) -> Code | None:
        return self.house.codes.get(code)

    def delete_authorization_code(self, authorization_code: Code) -> None:
        kept = self.house.codes.items()
        self.house.codes = {code: one for code, one in kept if one is not authorization_code}

    def authenticate_user(self, authorization_code: Code) -> str:
        return str(self.house.state["subject"])


class Identity(OpenIDCode):  # type: ignore[misc]
    """ID tokens at this provider's time and for the audience that it was told."""

    def __init__(self, house: Provider) -> None:
        super().__init__()
        self.house = house

    def exists_nonce(self, nonce: str, request: Any) -> bool:
        return False

    def generate_user_info(self, user: str, scope: str) -> UserInfo:
        return UserInfo(sub=user, name="Dana Doe", groups=self.house.state["groups"])

    def process_token(self, grant: Any, response: Any) -> Any:
        _, token, _ = response
        code, present = grant.request.authorization_code, int(time.time())
        present += self.house.state["skew"]
        said = {
            "iss": self.house.issuer, "aud": CLIENT,
            "iat": present, "exp": present + 300, "nonce": code.get_nonce(),
        }  # fmt: skip
        person = self.generate_user_info(grant.request.user, "")
        token["id_token"] = self.house.signed(said | person | self.house.state["id_token"])
        return token


def application(port: int) -> Flask:
    """The provider's pages."""
    app, house = Flask(__name__), Provider(port)
    CodeGrant.house = house
    server = AuthorizationServer(app, lambda _: Registered(), lambda *_: None)
    server.register_grant(CodeGrant, [CodeChallenge(required=True), Identity(house)])
    _add_descriptions(app, house)

    @app.get("/authorize")
    def authorize() -> Any:
        user = None if house.state["deny"] else house.state["subject"]
        grant = server.get_consent_grant(end_user=house.state["subject"])
        return server.create_authorization_response(grant_user=user, grant=grant)

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()

    return app


def _add_descriptions(app: Flask, house: Provider) -> None:
    @app.get("/.well-known/openid-configuration")
    def discovery() -> Response:
        house.state["reads"] += 1
        if not house.state["answers"]:
            return Response(status=500)
        return jsonify(
            issuer=house.issuer,
            jwks_uri=f"{house.issuer}/keys",
            authorization_endpoint=f"{house.issuer}/authorize",
            token_endpoint=f"{house.issuer}/token",
        )

    @app.get("/keys")
    def keys() -> Response:
        return jsonify(KeySet(list(house.keys)).as_dict(private=False))

    @app.post("/control")
    def control() -> Response:
        said = request.get_json()
        if "rotate" in said:
            house.rotate(keep=said.pop("rotate"))
        answer = {"token": house.token(said.pop("token"))} if "token" in said else {}
        house.state |= said
        return jsonify(answer | {"reads": house.state["reads"]})


if __name__ == "__main__":
    application(int(sys.argv[1])).run("127.0.0.1", int(sys.argv[1]), threaded=True)
