//! wire/sa.
