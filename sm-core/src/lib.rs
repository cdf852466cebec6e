//! ibsm, the lean InfiniBand subnet manager, and ibsmctl.
