//! The subcommands of `ibfabric`: their options, and what each does with them.

pub mod exec;
pub mod generate;
pub mod serve;
