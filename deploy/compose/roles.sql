-- Runs once, when the database's volume is made, as its owner: the role that serves owns nothing,
-- so that it cannot take away the triggers that hold facts insert-only.
\set password `cat /run/secrets/database_password`
CREATE ROLE dpledger LOGIN PASSWORD :'password';
ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO dpledger;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO dpledger;
