//! dissect.
