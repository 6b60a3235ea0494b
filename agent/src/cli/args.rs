//! Arguments, and what is done with them.

use std::{
    ffi::OsString,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::{
    ask::{self, Failure, PodName},
    attach, check, check_manifests, exec, inspect, logs,
    output::{TextOrJson, harmless, put, put_json},
    pods::{self, Columns},
    port_forward, run, terminal,
};
use crate::{
    config::{KubeletFlags, Settings},
    own_log,
};

/// The release of Kubernetes whose kubelet this is: what `kubelet --version` says, which kubeadm compares.
const KUBERNETES: &str = "Kubernetes v1.36.3";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 the command line or the configuration is wrong, \
3 the agent is not running, 4 no such pod, container or log. `exec` and `attach` end with the exit code of the process.";

/// Kubernetes node agent
#[derive(Debug, Parser)]
#[command(name = "berth", version, after_help = EXIT_CODES, subcommand_required = true, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent
    Run(KubeletFlags),
    /// End and remove every pod of an agent that was stopped, as `kubeadm reset` does for those of CRI
    Reset(KubeletFlags),
    /// Check a configuration, and say what of it is not yet acted on
    CheckConfig {
        #[command(flatten)]
        flags: KubeletFlags,
        /// How to show it
        #[arg(short, long, value_enum, default_value = "text")]
        output: TextOrJson,
    },
    /// Say about manifests what the agent would say, without one
    #[command(after_help = "Exit code 1 when a pod would not run as it is written.")]
    Check {
        #[command(flatten)]
        flags: KubeletFlags,
        /// How to show it
        #[arg(short, long, value_enum, default_value = "text")]
        output: TextOrJson,
        /// Files, or directories of them; `-` is standard input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the pods of this node
    Pods {
        #[command(flatten)]
        agent: Agent,
        /// Only those of one namespace
        #[arg(short, long)]
        namespace: Option<String>,
        /// How to show them
        #[arg(short, long, value_enum, default_value = "table")]
        output: PodsOutput,
    },
    /// Show everything about a pod
    Inspect {
        #[command(flatten)]
        agent: Agent,
        #[command(flatten)]
        pod: PodName,
        /// How to show it
        #[arg(short, long, value_enum, default_value = "text")]
        output: TextOrJson,
    },
    /// Show a container's log
    Logs {
        #[command(flatten)]
        agent: Agent,
        #[command(flatten)]
        options: logs::Options,
    },
    /// Run a process in a container
    Exec {
        #[command(flatten)]
        agent: Agent,
        #[command(flatten)]
        options: exec::Options,
    },
    /// Share the streams of a container's own process
    Attach {
        #[command(flatten)]
        agent: Agent,
        #[command(flatten)]
        options: attach::Options,
    },
    /// Make ports of this machine lead to ports of a pod
    PortForward {
        #[command(flatten)]
        agent: Agent,
        #[command(flatten)]
        options: port_forward::Options,
    },
    /// Write a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
struct Agent {
    /// Socket of the agent
    #[arg(long, value_name = "PATH", default_value = "/run/berth/berth.sock")]
    socket: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PodsOutput {
    Table,
    Wide,
    Json,
}

/// Does what the arguments say. Returns, so that every guard runs.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let result = match parse(&arguments) {
        Ok(Invocation::KubeletVersion) => {
            put(|out| writeln!(out, "{KUBERNETES}")).map(|()| ExitCode::SUCCESS)
        }
        Ok(Invocation::Kubelet(flags)) => run::run(*flags).map(|()| ExitCode::SUCCESS),
        Ok(Invocation::Berth(command)) => perform(*command),
        Err(error) => return shown(&error),
    };
    let (message, code) = match result {
        Ok(code) => (None, code),
        Err(failure) => failure.into_parts(),
    };
    own_log::end(&message.map(|message| format!("berth: {}\n", harmless(&message))).unwrap_or_default());
    code
}

enum Invocation {
    KubeletVersion,
    Kubelet(Box<KubeletFlags>),
    Berth(Box<Command>),
}

fn parse(arguments: &[OsString]) -> Result<Invocation, clap::Error> {
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    if called.is_none_or(|name| name != "kubelet") {
        return Ok(Invocation::Berth(Box::new(Arguments::try_parse_from(arguments)?.command)));
    }
    let command = clap::Command::new("kubelet").about("Berth as the kubelet").version(KUBERNETES);
    let command = KubeletFlags::augment_args(command);
    // kubeadm reads the version as the kubelet prints it, without the name of the program.
    if arguments.iter().skip(1).any(|argument| argument == "--version" || argument == "--version=true") {
        return Ok(Invocation::KubeletVersion);
    }
    let matches = command.try_get_matches_from(arguments.iter().map(with_dashes))?;
    Ok(Invocation::Kubelet(Box::new(KubeletFlags::from_arg_matches(&matches)?)))
}

/// The kubelet takes `_` for `-` in names of flags (`WordSepNormalizeFunc` of `k8s.io/component-base/cli/flag`).
fn with_dashes(argument: &OsString) -> OsString {
    let Some(flag) = argument.to_str().filter(|text| text.starts_with("--")) else { return argument.clone() };
    let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
    format!("{}{value}", name.replace('_', "-")).into()
}

fn shown(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    // Help into a pipe that is closed is no failure.
    drop(error.print());
    ExitCode::from(code)
}

fn perform(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(flags) => run::run(flags)?,
        Command::Reset(flags) => run::reset(flags)?,
        Command::CheckConfig { flags, output } => {
            let settings = Settings::load(flags).and_then(Settings::read_containerd).map_err(run::wrong)?;
            match output {
                TextOrJson::Text => put(|out| check::print(out, &settings))?,
                TextOrJson::Json => put_json(&check::json(&settings))?,
            }
        }
        Command::Check { flags, output, files } => {
            let settings = Settings::load(flags).and_then(Settings::read_containerd).map_err(run::wrong)?;
            let verdicts = check_manifests::verdicts(&settings, &files)?;
            match output {
                TextOrJson::Text => put(|out| check_manifests::print(out, &verdicts))?,
                TextOrJson::Json => put_json(&verdicts)?,
            }
            let is_good = verdicts.iter().all(check_manifests::Verdict::is_good);
            return Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Completions { shell } => put(|out| {
            clap_complete::generate(shell, &mut Arguments::command(), "berth", out);
            Ok(())
        })?,
        Command::Pods { agent, namespace, output } => {
            block_on(show_pods(&agent.socket, namespace.as_deref(), output))?;
        }
        Command::Inspect { agent, pod, output } => {
            let object = block_on(pod.object(&agent.socket))?;
            let width = terminal::size().map(|size| size.width);
            match output {
                TextOrJson::Text => put(|out| inspect::print(out, &object, width, Timestamp::now()))?,
                TextOrJson::Json => put_json(&inspect::json(&object)?)?,
            }
        }
        Command::Logs { agent, options } => block_on(logs::run(&agent.socket, &options))?,
        Command::Exec { agent, options } => return block_on(exec::run(&agent.socket, &options)),
        Command::Attach { agent, options } => return block_on(attach::run(&agent.socket, &options)),
        Command::PortForward { agent, options } => block_on(port_forward::run(&agent.socket, &options))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn show_pods(socket: &Path, namespace: Option<&str>, output: PodsOutput) -> Result<(), Failure> {
    let mut overview = ask::overview(socket).await?;
    if let Some(namespace) = namespace {
        overview.pods.retain(|pod| pod.pod.metadata.namespace.as_deref() == Some(namespace));
    }
    let width = terminal::size().map(|size| size.width);
    let table = |columns| put(|out| pods::print(out, &overview, columns, width, Timestamp::now()));
    match output {
        PodsOutput::Table => table(Columns::Usual),
        PodsOutput::Wide => table(Columns::Wide),
        PodsOutput::Json => {
            let items: Vec<_> = overview.pods.iter().map(|pod| &pod.pod).collect();
            put_json(
                &serde_json::json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}),
            )
        }
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::Failed(format!("failed to start: {error}")))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_may_be_written_with_underscores() {
        for (written, read) in [
            ("--max_pods=1", "--max-pods=1"),
            ("--node_labels=a_b=c_d", "--node-labels=a_b=c_d"),
            ("--fail_swap_on", "--fail-swap-on"),
            ("a_file", "a_file"),
        ] {
            assert_eq!(with_dashes(&written.into()), read);
        }
        let Ok(Invocation::Kubelet(_)) = parse(&["kubelet".into(), "--max_pods=1".into()]) else {
            panic!("not taken")
        };
    }
}
