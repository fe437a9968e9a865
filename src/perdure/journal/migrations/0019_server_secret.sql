-- The secret that servers on this journal share: it signs sessions of the browser, forms and links to
-- questions. One row, made by the first process that needs it.
CREATE TABLE perdure_server_secret (
  id   INTEGER NOT NULL PRIMARY KEY,
  body {blob} NOT NULL
);
