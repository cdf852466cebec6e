//! Arguments as OpenSM takes them: long options may begin with one dash, too.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

use super::{Command, Options};

/// Name of the command that checks the configuration.
const CHECK: &str = "check";

impl Options {
    /// Reads the arguments of a program, its name first. Ends the program on what cannot be read,
    /// and for help.
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        // It has the options of a start.
        let checks = arguments.get(1).is_some_and(|first| *first == *CHECK);
        if checks {
            arguments.remove(1);
        }
        // Commands that need no subnet are not OpenSM's, and have no options with one dash.
        let has_command = arguments.get(1).is_some_and(|first| {
            Self::command().get_subcommands().any(|command| *first == *command.get_name())
        });
        let arguments = if has_command { arguments } else { as_clap_takes(arguments) };
        // Certificates are for all commands of ibsmctl, and for none here.
        let command = Self::command().mut_args(|option| option.global(false));
        let mut options = Self::from_arg_matches(&command.get_matches_from(arguments))
            .unwrap_or_else(|error| error.exit());
        if checks {
            options.command = Some(Command::Check);
        }
        options
    }
}

/// `-maxsmps 8` is `--maxsmps 8`, and `-?` is `-h`, as for C's `getopt_long_only`.
fn as_clap_takes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut command = Options::command();
    command.build();
    let names = |argument: &clap::Arg| -> Vec<String> {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases).map(str::to_owned).collect()
    };
    let longs: Vec<String> = command.get_arguments().flat_map(names).collect();
    let takes_value = |letter: char| {
        let argument = command.get_arguments().find(|each| each.get_short() == Some(letter));
        argument.is_some_and(|argument| argument.get_action().takes_values())
    };
    let mut is_value = false;
    let mut all = Vec::new();
    for argument in arguments {
        let text = argument.to_str().unwrap_or_default();
        let was_asked_for = std::mem::take(&mut is_value);
        let rest = text.strip_prefix('-').filter(|_| !was_asked_for);
        let mut letters = rest.unwrap_or_default().chars();
        match (letters.next(), letters.next()) {
            (Some('?'), None) => all.push("-h".into()),
            (Some(first), Some(_)) if first != '-' => {
                let name = rest.and_then(|rest| rest.split('=').next()).unwrap_or_default();
                let fitting: Vec<_> = longs.iter().filter(|long| long.starts_with(name)).collect();
                let is_long = longs.iter().any(|long| long == name) || fitting.len() == 1;
                if is_long {
                    all.push(format!("-{text}").into());
                } else {
                    all.push(argument);
                }
            }
            (Some(letter), None) => {
                is_value = takes_value(letter);
                all.push(argument);
            }
            _ => all.push(argument),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use sm_config::Settings;

    fn settings(arguments: &[&str]) -> Settings {
        let arguments = ["ibsm"].iter().chain(arguments).map(OsString::from);
        let options = Options::try_parse_from(as_clap_takes(arguments)).unwrap();
        let mut settings = Settings::default();
        options.apply(&mut settings).unwrap();
        settings
    }

    #[test]
    fn long_options_may_have_one_dash_and_letters_their_values_at_once() {
        let set = settings(&["-maxsmps", "8", "-g0x12", "-Qz", "-t500", "-lmc=2", "-sm_sl", "3"]);
        assert_eq!((set.max_wire_smps, set.guid.0, set.qos), (8, 0x12, true));
        assert!(set.engines.updn.connect_roots);
        assert_eq!((set.transaction_timeout, set.lmc, set.sm_sl), (500, 2, 3));
    }

    #[test]
    fn options_may_be_cut_short_and_the_last_of_equals_counts() {
        let set = settings(&["--Pcon", "a", "-P", "b", "-conn", "-l", "1", "-l", "2"]);
        assert_eq!(set.partition_config_file.as_deref(), Some("b"));
        assert_eq!((set.engines.updn.connect_roots, set.lmc), (true, 2));
        assert_eq!(as_clap_takes(["ibsm", "-?", "-d1"].map(OsString::from))[1..], ["-h", "-d1"]);
    }

    /// Every option of `opensm --help`, but those of running in the background and of log files.
    #[test]
    fn options_of_opensm_are_taken() {
        let with_value = "config create-config debug guid ignore_guids hop_weights_file \
            dimn_ports_file port_search_ordering_file lmc sweep timeout D log_file Pconfig \
            part_enforce qos_policy_file cc_key maxsmps console priority subnet_prefix smkey \
            routing_engine lid_matrix_file lfts_file sadb_file root_guid_file cn_guid_file \
            io_guid_file scatter-ports max_reverse_hops ids_guid_file guid_routing_order_file \
            console-port perfmgr_sweep_time_s prefix_routes_file lash_start_vl sm_sl retries \
            torus_config nue_max_num_vls dump_files_dir pidfile";
        let alone = "verbose erase_log_file no_part_enforce allow_both_pkeys qos \
            congestion_control V once reassign_lids ucast_cache connect_roots port-shifting \
            stay_on_fatal perfmgr consolidate_ipv6_snm_req do_mesh_analysis \
            guid_routing_order_no_scatter";
        for (names, value) in [(with_value, Some("1")), (alone, None)] {
            for name in names.split_whitespace() {
                for dashes in ["-", "--"] {
                    let option = format!("{dashes}{name}");
                    let arguments = ["ibsm", &option].into_iter().chain(value);
                    let arguments = as_clap_takes(arguments.map(OsString::from));
                    let parsed = Options::try_parse_from(arguments);
                    assert!(parsed.is_ok(), "{option}: {}", parsed.unwrap_err());
                }
            }
        }
        let letters = "F:c:i:w:O:f:ed:D:g:l:s:t:a:u:m:X:R:zM:U:S:P:Y:ANZ:WQvVoryp:n:q:k:C:G:H:J:";
        let mut letters = letters.chars().peekable();
        while let Some(letter) = letters.next() {
            let option = format!("-{letter}");
            let mut arguments = vec!["ibsm", &option];
            if letters.next_if_eq(&':').is_some() {
                arguments.push("1");
            }
            let parsed = Options::try_parse_from(arguments);
            assert!(parsed.is_ok(), "{option}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn options_without_effect_are_refused_or_reported() {
        let refusal = |arguments: &[&str]| {
            let options = Options::parse_from(["ibsm"].iter().chain(arguments));
            options.apply(&mut Settings::default()).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(&["-d", "10"]),
            "option -d/--debug: debug takes 0, 1, 2 or 3 (others concern OpenSM's internals), not \
             '10'"
        );
        let set = settings(&["-d0", "-d", "3", "-k", "ab", "-y", "-A", "-D", "20"]);
        assert!(set.ignore_other_sm && set.disable_multicast && !set.exit_on_fatal);
        assert_eq!((set.sm_key, set.log_flags), (0xab, 20));
        assert_eq!(super::super::file::idle_keys(&set).len(), 1, "-A");
    }
}
