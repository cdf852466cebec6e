//! Writes manual pages and shell completions of the programs, from their command lines, to a
//! directory: `man/` and `completions/` with a directory for each shell.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

/// Where manuals of programs for administrators are.
const SECTION: &str = "8";

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: packaging DIRECTORY");
        return ExitCode::from(2);
    };
    match write(Path::new(&directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}: {failure}", Path::new(&directory).display());
            ExitCode::FAILURE
        }
    }
}

/// The command lines, by the programs' names. Commands of `ibsa` have command lines of their own.
fn programs() -> [Command; 3] {
    let hold = sa_server::host::handover::holder::HoldOptions::command().name("hold");
    let agent = sa_server::agent::runtime::AgentOptions::command().name("agent");
    [
        ibsm::cli::Options::command(),
        ibsm::ctl::Options::command(),
        sa_server::host::options::Options::command()
            // A responder is started without a command.
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand(hold)
            .subcommand(agent),
    ]
}

fn write(directory: &Path) -> io::Result<()> {
    let manuals = directory.join("man");
    fs::create_dir_all(&manuals)?;
    let shells = [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")];
    for mut program in programs() {
        let name = program.get_name().to_owned();
        for (shell, of_shell) in shells {
            let completions = directory.join("completions").join(of_shell);
            fs::create_dir_all(&completions)?;
            clap_complete::generate_to(shell, &mut program, &name, completions)?;
        }
        program.build();
        manual(&program, &name, &manuals)?;
    }
    Ok(())
}

/// Writes the manual of a command, and those of its commands.
fn manual(command: &Command, name: &str, directory: &Path) -> io::Result<()> {
    // A page is found by a name without spaces, as `man ibsmctl-status`.
    let page = name.replace(' ', "-");
    // Names of commands are static; those of pages live as long as this program.
    let titled = command.clone().name(&*page.clone().leak()).bin_name(name.to_owned());
    let man = Man::new(titled).section(SECTION).title(page.to_uppercase()).date("");
    let mut text = Vec::new();
    man.render(&mut text)?;
    fs::write(directory.join(format!("{page}.{SECTION}")), text)?;
    let is_shown = |each: &&Command| !each.is_hide_set() && each.get_name() != "help";
    for each in command.get_subcommands().filter(is_shown) {
        manual(each, &format!("{name} {}", each.get_name()), directory)?;
    }
    Ok(())
}
