//! The words of the console.

use ib_mad::types::Guid;

use super::{Answer, Effect, View, perf, port_guids, status};
use crate::civil::build_time;
use crate::inspect;

/// A word, its syntax, and what its detailed help adds.
struct Word {
    name: &'static str,
    syntax: &'static str,
    detail: &'static str,
    answer: fn(&[&str], &View) -> Answer,
}

const WORDS: &[Word] = &[
    Word {
        name: "quit",
        syntax: "quit (not valid in local mode; use ctl-c)\n",
        detail: "",
        answer: |_, _| Answer::with("", Effect::Close),
    },
    Word {
        name: "loglevel",
        syntax: "loglevel [<log-level>]\n",
        detail: "   the sum of these bits\n   \
                 errors                   0x01\n   \
                 information              0x02\n   \
                 verbose                  0x04\n   \
                 debug                    0x08\n   \
                 each function            0x10\n   \
                 frames                   0x20\n   \
                 routing                  0x40\n   \
                 copy to syslog           0x80\n\n   \
                 default                  0x03\n",
        answer: log_level,
    },
    Word {
        name: "permodlog",
        syntax: "permodlog\n",
        detail: "",
        answer: |_, view| match &view.settings.per_module_logging_file {
            Some(path) => Answer::with("", Effect::PrintModules(path.into())),
            None => Answer::default(),
        },
    },
    Word { name: "priority", syntax: "priority [<sm-priority>]\n", detail: "", answer: priority },
    Word { name: "resweep", syntax: "resweep [heavy|light]\n", detail: "", answer: resweep },
    Word {
        name: "reroute",
        syntax: "reroute\n",
        detail: "   recomputes all routes\n",
        answer: |_, _| Answer::with("", Effect::Reroute),
    },
    Word {
        name: "sweep",
        syntax: "sweep [on|off]\n",
        detail: "enable or disable sweeping\n   \
                 [on] sweep normally\n   \
                 [off] inhibit all sweeping\n",
        answer: sweep,
    },
    Word {
        name: "status",
        syntax: "status [loop]\n",
        detail: "   loop -- type \"q<ret>\" to quit\n",
        answer: |arguments, view| match arguments {
            [] => Answer::text(status::status(view)),
            _ => help_of("status"),
        },
    },
    Word {
        name: "logflush",
        syntax: "logflush [on|off] -- toggle opensm.log file flushing\n",
        // Each line of our log is flushed.
        detail: "",
        answer: |arguments, _| match arguments.first() {
            Some(&("on" | "off")) => Answer::default(),
            // The help of another word, as OpenSM's.
            _ => invalid("Invalid logflush command\n", "sweep"),
        },
    },
    Word {
        name: "querylid",
        syntax: "querylid lid -- print internal information about the lid specified\n",
        detail: "",
        answer: |arguments, view| match arguments.first() {
            Some(lid) => Answer::text(query_lid(lid, view)),
            None => invalid("no LID specified\n", "querylid"),
        },
    },
    Word {
        name: "portstatus",
        syntax: "portstatus [ca|switch|router]\n",
        detail: "   counts ports by state, width and speed, of all nodes or those of one type\n",
        answer: |arguments, view| match inspect::port_status(
            arguments.first().copied(),
            &view.fabric,
        ) {
            Some(status) => Answer::text(status.to_string()),
            None => invalid("Node type not understood\n", "portstatus"),
        },
    },
    Word {
        name: "switchbalance",
        syntax: "switchbalance [verbose] [guid]\n",
        detail: "   lists switches whose links to others carry unequal numbers of LIDs\n   \
                 verbose: all switches; guid: this one\n",
        answer: |arguments, view| {
            let (verbose, rest) = match arguments {
                ["verbose", rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            match guid(rest) {
                Ok(guid) => match inspect::of_switches(verbose, guid, &view.fabric) {
                    Some(switches) => Answer::text(joined(&switches)),
                    None => Answer::text("guid not found\n"),
                },
                Err(()) => invalid("Invalid guid specified\n", "switchbalance"),
            }
        },
    },
    Word {
        name: "lidbalance",
        syntax: "lidbalance [switchguid]\n",
        detail: "   lists ports whose LIDs a switch forwards unevenly\n   \
                 switchguid: at this switch only\n",
        answer: |arguments, view| match guid(arguments) {
            Ok(guid) => match inspect::of_lids(guid, &view.fabric) {
                Some(lids) => Answer::text(joined(&lids)),
                None => Answer::text("switchguid not found\n"),
            },
            Err(()) => invalid("Invalid switchguid specified\n", "lidbalance"),
        },
    },
    Word {
        name: "dump_conf",
        syntax: "dump_conf\n",
        detail: "   prints the settings in force, keys included\n",
        answer: |_, view| Answer { has_keys: true, ..Answer::text(view.settings.render()) },
    },
    Word {
        name: "update_desc",
        syntax: "update_desc\n",
        detail: "   reads the descriptions of all nodes again\n",
        answer: |_, _| Answer::with("", Effect::HeavySweep),
    },
    Word {
        name: "version",
        syntax: "version -- print the OSM version\n",
        detail: "",
        answer: |_, _| {
            let build = build_time(daemon::REVISION_TIME.parse().unwrap_or_default());
            Answer::text(format!("ibsm {} build {build}\n", env!("CARGO_PKG_VERSION")))
        },
    },
    Word { name: "perfmgr", syntax: perf::SYNTAX, detail: perf::DETAIL, answer: perf::answer },
    Word { name: "pm", syntax: "", detail: perf::DETAIL, answer: perf::answer },
    Word {
        name: "dump_portguid",
        syntax: "dump_portguid [file filename] regexp1 [regexp2 [regexp3 ...]] \
                 -- Dump port GUID matching a regexp \n",
        detail: "   prints GUIDs of ports, aliases included, of nodes with a matching name\n   \
                 file: writes them there\n",
        answer: port_guids::dump,
    },
];

/// Answers a word that is not empty.
pub(super) fn answer(word: &str, arguments: &[&str], view: &View) -> Answer {
    if word == "help" {
        return match arguments.first() {
            None => Answer::text(overview()),
            Some(word) => help_of(word),
        };
    }
    match WORDS.iter().find(|known| known.name == word) {
        Some(known) => (known.answer)(arguments, view),
        None => unknown(word),
    }
}

fn unknown(word: &str) -> Answer {
    Answer::text(format!("{word} : Command not found\n\n{}", overview()))
}

fn overview() -> String {
    let mut text = "Supported commands and syntax:\nhelp [<command>]\n".to_owned();
    WORDS.iter().for_each(|word| text += word.syntax);
    text
}

fn help_of(word: &str) -> Answer {
    match WORDS.iter().find(|known| known.name == word) {
        Some(known) => Answer::text(format!("{}{}", known.syntax, known.detail)),
        None => unknown(word),
    }
}

/// An error with the help of its word.
fn invalid(error: &str, word: &str) -> Answer {
    Answer::text(format!("{error}{}", help_of(word).text))
}

fn log_level(arguments: &[&str], view: &View) -> Answer {
    let Some(text) = arguments.first() else {
        return Answer::text(format!("Current log level is 0x{:x}\n", view.settings.log_flags));
    };
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix('x'));
    let level = match hex {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match level.map(|level| u8::try_from(level).map_err(|_| level)) {
        Ok(Ok(level)) => {
            Answer::with(format!("Setting log level to 0x{level:x}\n"), Effect::LogFlags(level))
        }
        Ok(Err(level)) => Answer::text(format!("Invalid log level {level:#x}\n")),
        Err(_) => Answer::text(format!("Invalid log level {text}\n")),
    }
}

fn priority(arguments: &[&str], view: &View) -> Answer {
    let Some(text) = arguments.first() else {
        let priority = view.sm.priority;
        return Answer::text(format!("Current sm-priority is {priority}\n"));
    };
    match sm_config::parse_number(text).map(u8::try_from) {
        Some(Ok(priority @ 0..=15)) => {
            Answer::with(format!("Setting sm-priority to {priority}\n"), Effect::Priority(priority))
        }
        _ => Answer::text(format!("Invalid sm-priority {text}; must be between 0 and 15\n")),
    }
}

fn resweep(arguments: &[&str], _: &View) -> Answer {
    match arguments.first() {
        Some(&"heavy") => Answer::with("", Effect::HeavySweep),
        Some(&"light") => Answer::with("", Effect::LightSweep),
        _ => invalid("Invalid resweep command\n", "resweep"),
    }
}

fn sweep(arguments: &[&str], _: &View) -> Answer {
    match arguments.first() {
        Some(&"on") => Answer::with("", Effect::Sweeping(true)),
        Some(&"off") => Answer::with("", Effect::Sweeping(false)),
        _ => invalid("Invalid sweep command\n", "sweep"),
    }
}

/// The port that has a LID.
fn query_lid(text: &str, view: &View) -> String {
    let lid = sm_config::parse_number(text).and_then(|lid| u16::try_from(lid).ok()).unwrap_or(0);
    match inspect::query_lid(lid, &view.fabric) {
        Some(report) => format!("Query results for LID {lid}\n{report}"),
        None => format!("Invalid lid {lid}\n"),
    }
}

fn joined(reports: &[impl ToString]) -> String {
    reports.iter().map(ToString::to_string).collect()
}

/// The GUID that is the first argument, if there is one.
fn guid(arguments: &[&str]) -> Result<Option<Guid>, ()> {
    let Some(text) = arguments.first() else { return Ok(None) };
    match sm_config::parse_number(text) {
        Some(0) | None => Err(()),
        Some(guid) => Ok(Some(Guid(guid))),
    }
}
