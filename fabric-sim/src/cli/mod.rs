//! The subcommands of `ibfabric`: their options and effects.

pub mod exec;
pub mod generate;
pub mod serve;
