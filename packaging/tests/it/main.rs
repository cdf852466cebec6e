//! The generated files, by running the program.

use std::process::Command;

#[test]
fn each_program_and_command_has_a_manual_and_each_shell_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_packaging");
    assert!(Command::new(program).arg(directory.path()).status().unwrap().success());
    let read = |file: &str| std::fs::read_to_string(directory.path().join(file)).unwrap();
    let manual = read("man/ibsm.8");
    assert!(manual.contains("IBSM 8") && manual.contains("partition"), "{manual}");
    for page in
        ["ibsm-plan", "ibsm-check", "ibsmctl", "ibsmctl-status", "ibsa", "ibsa-hold", "ibsa-agent"]
    {
        assert!(!read(&format!("man/{page}.8")).is_empty());
    }
    for file in ["bash/ibsa.bash", "zsh/_ibsmctl", "fish/ibsm.fish"] {
        assert!(!read(&format!("completions/{file}")).is_empty());
    }
}
