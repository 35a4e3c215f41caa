"""What tests of several packages share: real records and ledgers, made with few words."""
