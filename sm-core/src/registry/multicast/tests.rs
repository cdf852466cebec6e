//! Groups and members, request by request.
