//! wire/rmpp.
