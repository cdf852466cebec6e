//! `event_plugin_name` and `event_plugin_options`: the program that gets events.
//!
//! OpenSM loads shared objects, which reach into its own structures. Those cannot be loaded here;
//! `exec:PATH` names a program instead.

use super::settings::Settings;

/// What makes the name one of a program.
const EXEC: &str = "exec:";
/// Largest number of arguments.
const ARGUMENTS_MAX: usize = 64;

/// A program that gets events as lines of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCommand {
    /// Its path.
    pub path: String,
    /// Its arguments: those after the path, then those of `event_plugin_options`.
    pub arguments: Vec<String>,
    /// Labels of the kinds of events that it gets; empty for all that have numbers.
    pub kinds: Vec<String>,
}

impl Settings {
    /// The program that gets events, if one is named. Arguments are separated by white space.
    pub fn event_command(&self) -> Option<EventCommand> {
        let mut words = self.event_plugin_name.as_deref()?.strip_prefix(EXEC)?.split_whitespace();
        let path = words.next()?.to_owned();
        let options = self.event_plugin_options.as_deref().unwrap_or_default().split_whitespace();
        let arguments = words.chain(options).take(ARGUMENTS_MAX).map(str::to_owned).collect();
        let kinds = self.event_plugin_kinds.as_deref().unwrap_or_default();
        let kinds = kinds.split([',', ' ', '\t']).filter(|kind| !kind.is_empty());
        Some(EventCommand { path, arguments, kinds: kinds.map(str::to_owned).collect() })
    }

    /// Why the plug-in that is named is not used; `None` if it is, or if none is named.
    pub(super) fn event_plugin_remark(&self) -> Option<String> {
        if self.event_command().is_some() {
            return None;
        }
        match (&self.event_plugin_name, &self.event_plugin_options) {
            (None, None) => None,
            (None, Some(_)) => {
                Some("no effect: event_plugin_options: event_plugin_name is not set".to_owned())
            }
            (Some(_), _) => Some(
                "no effect: event_plugin_name: OpenSM's plug-ins cannot be loaded; a program gets \
                 the events as JSON with exec:PATH"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &str, options: Option<&str>) -> Settings {
        Settings {
            event_plugin_name: Some(name.to_owned()),
            event_plugin_options: options.map(str::to_owned),
            ..Settings::default()
        }
    }

    #[test]
    fn a_program_has_a_path_and_arguments_and_a_library_is_reported() {
        let command = settings("exec:/opt/notify -v", Some("--to ops")).event_command().unwrap();
        assert_eq!(
            (&command.path[..], command.arguments),
            ("/opt/notify", ["-v", "--to", "ops"].map(str::to_owned).to_vec())
        );
        assert_eq!(settings("exec:/opt/notify", None).event_plugin_remark(), None);
        for name in ["osmeventplugin", "exec:", "/opt/notify", "exec: "] {
            let settings = settings(name, None);
            assert_eq!(settings.event_command(), None, "{name}");
            assert!(settings.event_plugin_remark().unwrap().contains("cannot be loaded"));
        }
        assert_eq!(Settings::default().event_plugin_remark(), None);
        let chosen = Settings {
            event_plugin_kinds: Some("trap, port_errors,".to_owned()),
            ..settings("exec:/x", None)
        };
        assert_eq!(chosen.event_command().unwrap().kinds, ["trap", "port_errors"]);
        let many = settings("exec:/x", Some(&"a ".repeat(1000)));
        assert_eq!(many.event_command().unwrap().arguments.len(), ARGUMENTS_MAX);
    }

    /// A standby that uses the master's settings must not run programs that another host names.
    #[test]
    fn the_program_is_of_one_host() {
        let theirs = settings("exec:/opt/notify", Some("x"));
        assert_eq!(theirs.shared_text(), "");
        let mut ours = Settings::default();
        let ignored = ours.take_shared("event_plugin_name exec:/bin/sh\n");
        assert_eq!((ignored.len(), ours.event_command()), (1, None));
    }
}
