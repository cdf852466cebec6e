//! The result of a search for credit loops.

use std::fmt;

/// The traffic whose dependencies were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// From every switch to every LID. Without loops here, no traffic at all can deadlock.
    All,
    /// From every switch to hosts' LIDs, which includes all traffic between hosts. Without loops
    /// here, hosts cannot deadlock, although routes to switches' own LIDs have loops.
    ToHosts,
    /// Between hosts only. Routes from and to switches' own LIDs may turn where no route between
    /// hosts does: a route to a core switch of a fat tree may come down and go up again.
    Hosts,
}

/// The result of a search for credit loops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreditLoops {
    /// The traffic that was examined.
    pub traffic: Traffic,
    /// Number of links between switches, each direction counted separately.
    pub links: usize,
    /// Number of dependencies: pairs of links of which one waits for the other.
    pub dependencies: u64,
    /// Number of links that lie on cycles or behind them, counted per lane; 0 means that no
    /// deadlock can happen.
    pub looping: usize,
    /// A cycle, if there is any, as switches and the ports by which they send.
    pub example: Vec<(u16, u8)>,
    /// The virtual lane of that cycle, or of its first hop; `None` if all traffic was assumed to
    /// use one.
    pub lane: Option<u8>,
    /// Number of lanes on which routes were found.
    pub lanes: u8,
}

impl CreditLoops {
    /// Whether no deadlock can happen.
    pub fn is_free(&self) -> bool {
        self.looping == 0
    }
}

impl fmt::Display for CreditLoops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { traffic, links, dependencies, looping, .. } = self;
        let traffic = match traffic {
            Traffic::All => "all traffic",
            Traffic::ToHosts => "traffic to hosts",
            Traffic::Hosts => "traffic between hosts",
        };
        if self.is_free() {
            return write!(f, "no credit loops for {traffic}: {dependencies} dependencies");
        }
        write!(f, "credit loops for {traffic} on up to {looping} of {links} links, for example ")?;
        let hops = self.example.iter().map(|(switch, port)| format!("{switch}[{port}]"));
        f.write_str(&hops.collect::<Vec<_>>().join(" > "))?;
        self.lane.map_or(Ok(()), |lane| write!(f, " on VL {lane}"))
    }
}
