//! `-g 0`: lists the ports of this host and asks at the terminal on which of them to run, as OpenSM
//! does.

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};

use ib_mad::transport::umad::{UmadError, UmadPort};
use ib_mad::types::{Guid, Lid};

use crate::cli::{Config, TransportKind};

/// Why `-g 0` ends the start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The ports are not known.
    #[error("-g 0: {0}")]
    Umad(#[from] UmadError),
    /// No port fits `--device` and `--port`.
    #[error("-g 0: this host has no port to choose; see --device and --port")]
    NoPorts,
    /// Standard input is no terminal.
    #[error(
        "-g 0 asks which port to use, which needs a terminal on standard input and no -B; start \
         with the GUID of one of the {ports} ports listed above, as -g {example}"
    )]
    NoTerminal {
        /// Number of ports.
        ports: usize,
        /// GUID of the first.
        example: Guid,
    },
    /// The operator chose none.
    #[error("-g 0: no port was chosen")]
    NoneChosen,
    /// The terminal.
    #[error("-g 0: {0}")]
    Terminal(#[from] io::Error),
}

/// A port to choose.
struct Candidate {
    guid: Guid,
    lid: Lid,
    state: String,
    /// Device, port number and umad file.
    place: String,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guid, lid, state, place } = self;
        write!(f, "GUID {guid}, LID {lid}, {state}, {place}")
    }
}

/// The port that the operator chooses, if the command line says `-g 0`. A simulated fabric gives
/// each client one port: there is nothing to choose.
pub(in crate::runtime) fn choose(config: &Config) -> Result<Option<Guid>, ChoiceError> {
    if !config.asks_for_port() {
        return Ok(None);
    }
    if config.transport != TransportKind::Umad {
        let _ = writeln!(
            io::stderr(),
            "-g 0: at a simulated fabric there is no choice; using the port of --node"
        );
        return Ok(None);
    }
    let ports = UmadPort::fitting(config.device.as_deref(), config.port)?;
    let candidates: Vec<Candidate> = ports.iter().filter_map(candidate).collect();
    let may_ask = io::stdin().is_terminal() && !config.settings.daemon;
    // The prompt is seen even if the log, on standard output, goes elsewhere.
    ask(&candidates, may_ask, &mut io::stdin().lock(), &mut io::stderr()).map(Some)
}

/// The port as it is now; none if it has just gone.
fn candidate(port: &UmadPort) -> Option<Candidate> {
    let local = port.local().ok()?;
    let state = local.state.map_or_else(|| "unknown state".to_owned(), |state| state.to_string());
    Some(Candidate { guid: local.guid, lid: local.lid, state, place: port.to_string() })
}

/// Lists the ports and reads a number, again until there is one. The only port is not asked for.
fn ask(
    ports: &[Candidate],
    may_ask: bool,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
) -> Result<Guid, ChoiceError> {
    match ports {
        [] => return Err(ChoiceError::NoPorts),
        [only] => {
            writeln!(output, "-g 0: using the only port, {only}")?;
            return Ok(only.guid);
        }
        _ => writeln!(output, "Ports of this host:")?,
    }
    for (number, port) in (1..).zip(ports) {
        writeln!(output, "  {number}: {port}")?;
    }
    if !may_ask {
        return Err(ChoiceError::NoTerminal { ports: ports.len(), example: ports[0].guid });
    }
    writeln!(output, "  0: exit")?;
    loop {
        write!(output, "Number of the port to run on (0-{}): ", ports.len())?;
        output.flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Err(ChoiceError::NoneChosen);
        }
        match line.trim().parse::<usize>() {
            Ok(0) => return Err(ChoiceError::NoneChosen),
            Ok(number) if number <= ports.len() => return Ok(ports[number - 1].guid),
            _ => writeln!(output, "'{}' is not the number of a port", line.trim().escape_debug())?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(count: u64) -> Vec<Candidate> {
        let port = |n: u64| Candidate {
            guid: Guid(0x10 + n),
            lid: Lid(n as u16),
            state: "Active".to_owned(),
            place: format!("mlx5_{n} port 1 (umad{n})"),
        };
        (1..=count).map(port).collect()
    }

    /// The result, and what was printed, for what the operator types.
    fn asked(count: u64, may_ask: bool, typed: &str) -> (Result<Guid, String>, String) {
        let mut output = Vec::new();
        let chosen = ask(&ports(count), may_ask, &mut typed.as_bytes(), &mut output);
        (chosen.map_err(|error| error.to_string()), String::from_utf8(output).unwrap())
    }

    #[test]
    fn the_operator_chooses_a_port_by_its_number() {
        let (chosen, text) = asked(2, true, "3\nmlx5_2\n\n2\n");
        assert_eq!(chosen, Ok(Guid(0x12)));
        assert!(
            text.contains("  2: GUID 0x0000000000000012, LID 2, Active, mlx5_2 port 1 (umad2)\n"),
            "{text}"
        );
        assert_eq!(text.matches("Number of the port to run on (0-2): ").count(), 4, "{text}");
        assert!(text.contains("'3' is not") && text.contains("'mlx5_2' is not"), "{text}");
    }

    #[test]
    fn zero_or_the_end_of_input_chooses_none() {
        for typed in ["0\n", "", "7\n"] {
            assert_eq!(asked(2, true, typed).0, Err("-g 0: no port was chosen".to_owned()));
        }
    }

    #[test]
    fn without_a_terminal_the_ports_are_listed_and_nothing_is_read() {
        let (chosen, text) = asked(3, false, "2\n");
        let error = chosen.unwrap_err();
        assert!(error.contains("needs a terminal") && error.ends_with("-g 0x0000000000000011"));
        assert_eq!((text.lines().count(), text.contains("0: exit")), (4, false), "{text}");
    }

    #[test]
    fn the_only_port_is_used_and_none_is_an_error() {
        for may_ask in [true, false] {
            assert_eq!(asked(1, may_ask, "").0, Ok(Guid(0x11)));
            assert!(asked(0, may_ask, "").0.unwrap_err().contains("no port to choose"));
        }
    }
}
