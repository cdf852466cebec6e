//! `ibsmctl dump`: paths in the format of another program, written as they arrive.

use std::io::{self, IsTerminal, Write};

use sa_proto::proto::admin::DumpPathsRequest;

use super::{CtlError, Sm};

/// Options of `dump`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    ibsmctl dump --opensm-full-v1 > paths.dump                   Of all ports.\n  \
    ibsmctl dump --opensm-full-v1 host-1 > ibacm_route.data      From one host to all ports.\n\
    \nA list from all ports has a line of 20 bytes for each pair: 2 GB at 10,000 ports. ibacm \
    reads the\nsection of its own port only, and needs the headings of all.")]
pub struct Options {
    /// As OpenSM's plug-in dump_pr writes them; ibacm reads it with route_preload opensm_full_v1.
    #[arg(long, required = true)]
    opensm_full_v1: bool,
    /// List the paths from these nodes: name, GUID or LID [default: from all].
    #[arg(value_name = "NODE")]
    sources: Vec<String>,
}

/// Writes the paths to standard output.
pub(super) async fn run(sm: &Sm, options: &Options) -> Result<String, CtlError> {
    let request = DumpPathsRequest { sources: options.sources.clone() };
    let answer = sm.connect().await?.dump_paths(request).await;
    let mut stream = answer.map_err(|status| sm.refused(&status))?.into_inner();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let shows_progress = io::stderr().is_terminal() && !io::stdout().is_terminal();
    let mut shown = 0;
    while let Some(part) = stream.message().await.map_err(|status| sm.refused(&status))? {
        if out.write_all(part.text.as_bytes()).is_err() {
            return Ok(String::new());
        }
        if shows_progress && part.done != shown {
            let _ = write!(io::stderr(), "\rpaths from {} of {} ports", part.done, part.total);
            shown = part.done;
        }
    }
    if shown > 0 {
        let _ = writeln!(io::stderr());
    }
    out.flush()?;
    Ok(String::new())
}
