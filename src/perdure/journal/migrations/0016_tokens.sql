-- Tokens of the HTTP API. A token itself is never stored, only its hash.
--
-- hash        SHA-256 of the token, as hex
-- scopes      read, start, answer, admin; separated by spaces
-- used_at     when it was last used, to within some minutes
-- revoked_at  NULL: it may be used, until expires_at
CREATE TABLE perdure_tokens (
  hash       {text} PRIMARY KEY,
  name       {text} NOT NULL,
  scopes     {text} NOT NULL,
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  used_at    BIGINT,
  revoked_at BIGINT
);

CREATE UNIQUE INDEX perdure_tokens_name ON perdure_tokens (name) WHERE revoked_at IS NULL;
