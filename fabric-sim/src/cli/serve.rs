//! `ibfabric serve` simulates a subnet for tools that use ibsim's protocol; `ibfabric ctl` sends
//! commands to it.

use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::serve::console::{Command, HELP};
use crate::serve::{ServeError, Server, console_name, ignore_hangups, raise_descriptor_limit};
use crate::{Fabric, Options, Probability};
use ib_mad::netlist::{Net, NetError, NodeKind};

/// Simulate a subnet from a net file and serve it to InfiniBand tools
///
/// Uses ibsim's socket protocol. Run stock tools with 'ibfabric exec' or under ibsim's preload
/// library, such as 'IBSIM_SOCKNAME=NAME ibsim-run ibnetdiscover'. Any number of clients can
/// attach, several to one node. Commands (see 'ibfabric ctl help') are read from a terminal or sent
/// with 'ibfabric ctl'. RUST_LOG=info logs clients that connect and disconnect.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Net file for ibsim, or output of ibnetdiscover or 'ibfabric generate'
    net: PathBuf,
    /// Base of the socket names
    #[arg(long, value_name = "NAME", env = "IBSIM_SOCKNAME", default_value = "sim")]
    socket: String,
    /// Seed that decides which packets are lost and which faults occur
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Share of packets lost on every link, such as 0.01 or 1%; tools under ibsim's preload library
    /// do not retry
    #[arg(long, value_name = "SHARE", value_parser = parse_probability)]
    loss: Option<Probability>,
    /// Delay of every link
    #[arg(long, value_name = "MICROSECONDS")]
    delay: Option<u64>,
    /// Interval at which a link is cut or restored or a switch rebooted, chosen by the seed
    #[arg(long, value_name = "MILLISECONDS")]
    chaos: Option<u64>,
    /// Give every adapter port this many virtual ports, with a virtual function at each; see
    /// 'ibfabric ctl help' for virtual-ports, vport-up and vport-down
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1023))]
    virtual_ports: Option<u16>,
    /// Drop undeliverable packets instead of returning them to the sender; tools under ibsim's
    /// preload library wait for returned packets
    #[arg(long)]
    silent_drops: bool,
}

/// Send a command to a served fabric
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct CtlArgs {
    /// Base of the socket names
    #[arg(long, value_name = "NAME", env = "IBSIM_SOCKNAME", default_value = "sim")]
    socket: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Why serving or a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The net file is invalid.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The server could not start.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The net file has no nodes.
    #[error("{0}: no nodes found; a net file has lines such as Switch 8 \"S1\"")]
    Empty(PathBuf),
    /// No server uses the socket name.
    #[error("no fabric is served at socket name '{0}'; start 'ibfabric serve NET --socket {0}'")]
    NotServed(String),
    /// The server rejected the command.
    #[error("{0}")]
    Refused(String),
    /// The system's error.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
}

fn parse_probability(text: &str) -> Result<Probability, String> {
    Probability::parse(text).ok_or_else(|| {
        "expected a number from 0 to 1 or a percentage, such as 0.05 or 5%".to_owned()
    })
}

/// Prints a line on standard error, which may be closed.
fn say(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "ibfabric: {what}");
}

/// Runs `ibfabric serve`.
pub fn serve(args: &ServeArgs) -> Result<(), CliError> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // A closed standard error must not end the simulation.
        .log_internal_errors(false)
        .init();
    let start = Instant::now();
    let net = Net::read(&args.net)?;
    if net.nodes().is_empty() {
        return Err(CliError::Empty(args.net.clone()));
    }
    let (hosts, switches) = (net.count(NodeKind::Ca), net.count(NodeKind::Switch));
    let links = net.links().count();
    say(format_args!(
        "{}: {hosts} hosts, {switches} switches, {links} links, read in {} ms",
        args.net.display(),
        start.elapsed().as_millis(),
    ));
    let options =
        Options { seed: args.seed, return_undelivered: !args.silent_drops, ..Options::default() };
    let mut fabric = Fabric::new(&net, options);
    let now = Instant::now();
    if let Some(count) = args.virtual_ports {
        fabric.add_virtual_ports_everywhere(now, count);
    }
    for line in &net.commands {
        let done = Command::parse(line).map_err(|error| error.to_string());
        if let Err(error) = done.and_then(|command| command.carry_out(&mut fabric, now)) {
            say(format_args!("net file: command 'do {line}' skipped: {error}"));
        }
    }
    // These commands fail only for a nonexistent link; without one they apply to all links.
    let everywhere = [
        args.loss.map(|loss| fabric.set_loss(None, loss)),
        args.delay.map(|us| fabric.set_delay(None, Duration::from_micros(us))),
    ];
    debug_assert!(everywhere.into_iter().flatten().all(|done| done.is_ok()));
    if let Some(ms) = args.chaos {
        fabric.set_chaos(now, Some(Duration::from_millis(ms)));
    }
    let mut server = Server::bind(fabric, &args.socket)?;
    // Each client needs a descriptor; serve fewer clients rather than fail.
    if let Err(error) = raise_descriptor_limit() {
        say(format_args!("cannot raise the limit of open files, few clients can attach: {error}"));
    }
    if io::stdin().is_terminal() {
        server.watch_keyboard()?;
    }
    ignore_hangups();
    say(format_args!(
        "ready, socket {}, {hosts} hosts, {switches} switches, {links} links",
        args.socket,
    ));
    Ok(server.run()?)
}

/// Runs `ibfabric ctl`.
pub fn control(args: &CtlArgs) -> Result<(), CliError> {
    let address = SocketAddr::from_abstract_name(console_name(&args.socket))?;
    let mut stream =
        UnixStream::connect_addr(&address).map_err(|_| CliError::NotServed(args.socket.clone()))?;
    let quoted: Vec<String> = args
        .command
        .iter()
        .map(|word| if word.contains(' ') { format!("\"{word}\"") } else { word.clone() })
        .collect();
    stream.write_all(format!("{}\n", quoted.join(" ")).as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    for reply in BufReader::new(stream).lines() {
        let reply = reply?;
        if let Some(error) = reply.strip_prefix("error: ") {
            return Err(CliError::Refused(error.to_owned()));
        }
        match writeln!(io::stdout(), "{reply}") {
            // The reader, perhaps a pager, was closed.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
