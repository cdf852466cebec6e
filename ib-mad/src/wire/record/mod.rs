//! wire/record/mod.
