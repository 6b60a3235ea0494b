//! The command line. Called as `kubelet` it is `berth run` with the kubelet's flags.
//!
//! Exit codes: 0 done; 1 failed; 2 the command line or the configuration is wrong; 3 the agent is not running; 4 no such pod,
//! container or log. `exec` and `attach` end with the exit code of the process.

mod age;
mod args;
mod ask;
mod attach;
mod check;
mod check_manifests;
mod exec;
mod inspect;
mod logs;
mod output;
mod pods;
mod port_forward;
mod run;
mod streams;
mod summary;
mod terminal;

pub use args::main;

#[cfg(test)]
mod tests;
