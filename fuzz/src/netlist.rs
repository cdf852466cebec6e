//! Target for net files: any file that can be read must be written so that it reads the same.

use ib_mad::netlist::Net;

use crate::golden;

/// The target: the input is a net file.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut net = match Net::parse("input", &text) {
        Ok(net) => net,
        Err(error) => return assert!(error.to_string().contains("input")),
    };
    let written = net.to_string();
    let mut again = Net::parse("written", &written)
        .unwrap_or_else(|error| panic!("{text:?} was written as {written:?}: {error}"));
    // Text that a file cannot represent, such as control characters in names, is lost. Ports and
    // cables are not lost, and a written file is written the same again. Commands belong to the
    // simulator.
    let links = |net: &Net| net.links().collect::<Vec<_>>();
    assert_eq!(net.nodes().len(), again.nodes().len(), "{text:?} was written as {written:?}");
    assert_eq!(links(&net), links(&again), "{text:?} was written as {written:?}");
    net.commands.clear();
    again.commands.clear();
    assert_eq!(net.to_string(), again.to_string(), "of {text:?}");
}

/// A recorded net, and all kinds of lines.
pub fn seeds() -> Vec<Vec<u8>> {
    let recording = golden::recording();
    let net = recording["net"].as_str().expect("net");
    let head: String = net.lines().take(40).flat_map(|line| [line, "\n"]).collect();
    let small = "vendid=0x2c9\ndevid=0xcb84\nsysimgguid=0x10\nswitchguid=0x10(10)\n\
        Switch 4 \"S-10\" # \"a switch\" enhanced port 0 lid 3 lmc 0\n\
        [1] \"H-20\"[1](21) # \"a host\" lid 5 4xEDR\n\n\
        caguid=0x20\nCa 1 \"H-20\" # \"a host\"\n[1](21) \"S-10\"[1] # lid 5 lmc 0 4xEDR\n";
    let short =
        "Switch 2 \"a\"\n[1] \"b\"\n[2] \"c\"[1]\nHca 1 \"b\"\nHca 2 \"c\"\ndo unlink a[1]\n";
    vec![net.into(), head.into(), small.into(), short.into()]
}
