//! wire/smp.
