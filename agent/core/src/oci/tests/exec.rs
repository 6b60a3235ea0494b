//! A process beside the first.

use super::Bench;
use crate::{
    oci::{ConfigError, ExecTerminal, exec_process},
    spec::{EnvSource, EnvVar},
};

#[test]
fn other_arguments_all_else_the_same() {
    let bench = Bench::with(|bench| {
        bench.container.working_dir = Some("/srv".into());
        bench.container.security.run_as_user = Some(1000);
    });
    let spec = bench.spec();
    let own = spec.process().clone().unwrap();
    let exec = exec_process(&spec, &["ls".into(), "-l".into()], ExecTerminal::None).unwrap();
    assert_eq!(exec.args().clone().unwrap(), ["ls", "-l"]);
    let mut back = exec;
    back.set_args(own.args().clone());
    assert_eq!(back, own);
}

#[test]
fn a_terminal_has_a_kind() {
    let spec = Bench::new().spec();
    let exec = exec_process(&spec, &["sh".into()], ExecTerminal::Own).unwrap();
    assert_eq!(exec.terminal(), Some(true));
    assert_eq!(exec.env().clone().unwrap().last().unwrap(), "TERM=xterm");
    let with_terminal = Bench::with(|bench| bench.container.stdio.tty = true).spec();
    let exec = exec_process(&with_terminal, &["sh".into()], ExecTerminal::Own).unwrap();
    assert_eq!(exec.env().clone().unwrap().iter().filter(|entry| entry.starts_with("TERM=")).count(), 1);
    let term = EnvVar { name: "TERM".into(), source: EnvSource::Value("dumb".into()) };
    let dumb = Bench::with(|bench| bench.container.env = vec![term.clone()]).spec();
    let terms = |terminal| -> Vec<String> {
        let exec = exec_process(&dumb, &["sh".into()], terminal).unwrap();
        exec.env().clone().unwrap().into_iter().filter(|entry| entry.starts_with("TERM=")).collect()
    };
    assert_eq!([terms(ExecTerminal::Own), terms(ExecTerminal::None)], [["TERM=xterm"], ["TERM=dumb"]]);
    let exec = exec_process(&with_terminal, &["sh".into()], ExecTerminal::None).unwrap();
    assert_eq!(exec.terminal(), Some(false));
}

#[test]
fn nothing_and_a_nul_are_refused() {
    let spec = Bench::new().spec();
    assert_eq!(exec_process(&spec, &[], ExecTerminal::None), Err(ConfigError::NoCommand));
    let nul = exec_process(&spec, &["a\0b".into()], ExecTerminal::None);
    assert_eq!(nul, Err(ConfigError::Nul { what: "argument" }));
}
