//! wire/attribute/mod.
