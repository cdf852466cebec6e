//! `ibsmctl password`: a user for `ibsm --api-users`.

use std::io::BufRead as _;

use sa_proto::trust::Role;

use super::CtlError;
use crate::api::users;

/// Options of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Name of the user.
    name: String,
    /// Role: admin or viewer.
    #[arg(long, default_value = "admin")]
    role: String,
}

/// Reads a password and prints the line.
pub(super) fn run(options: &Options) -> Result<String, CtlError> {
    let role = Role::of_name(&options.role).filter(|role| *role != Role::Responder);
    let role = role.ok_or_else(|| CtlError::Argument {
        what: "--role",
        expected: "admin or viewer",
        got: options.role.clone(),
    })?;
    let mut password = String::new();
    std::io::stdin().lock().read_line(&mut password)?;
    let password = password.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        return Err(CtlError::Argument {
            what: "standard input",
            expected: "a password",
            got: String::new(),
        });
    }
    let line = users::line(&options.name, role, password);
    line.map(|line| line + "\n").ok_or_else(|| CtlError::Argument {
        what: "NAME",
        expected: "a name without colons",
        got: options.name.clone(),
    })
}
