//! Benchmarks and whole-system tests; imports every crate, imported by none.
