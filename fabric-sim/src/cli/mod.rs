//! The subcommands of `ibfabric`: their options and what each does.

pub mod exec;
pub mod generate;
pub mod serve;
