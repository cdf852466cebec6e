//! rmpp/mod.
