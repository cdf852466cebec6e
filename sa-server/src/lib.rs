//! ibsa, the subnet administration responder.
