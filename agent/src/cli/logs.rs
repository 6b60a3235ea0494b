//! `berth logs`: a container's log, straight from its file.

use std::{
    borrow::Cow,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStatus;
use tokio::time::timeout;

use super::{
    ask::{ContainerName, Failure},
    output::{TextOrJson, json_line},
};
use crate::{
    causes::with_causes,
    config::GoDuration,
    control::PodObject,
    logs::{Changes, Line, Lines, LogFile, LogFileError, Progress, Select, Stream, Watcher},
};

/// How often a reader that follows asks whether the container still runs. Lines come by inotify, not by this.
const CHECK: Duration = Duration::from_secs(1);

/// What of which log.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct Options {
    #[command(flatten)]
    pub(super) target: ContainerName,
    /// Go on with what is written from now on, until the container ends
    #[arg(short, long)]
    pub(super) follow: bool,
    /// The run before the current one
    #[arg(short, long)]
    pub(super) previous: bool,
    /// Only lines not older than this, such as 10m, or a time such as 2026-11-21T07:00:00Z
    #[arg(long, value_parser = since)]
    pub(super) since: Option<Since>,
    /// Only so many lines from the end
    #[arg(long)]
    pub(super) tail: Option<u64>,
    /// Times before the lines
    #[arg(long)]
    pub(super) timestamps: bool,
    /// How to show it: json is an object a line, with the line's time, stream and log
    #[arg(short, long, value_enum, default_value = "text")]
    pub(super) output: TextOrJson,
}

/// A length of time, or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    Ago(Duration),
    Time(Timestamp),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(time) = text.parse() {
        return Ok(Since::Time(time));
    }
    let GoDuration(ago) = text.parse().map_err(|error: crate::config::DurationError| error.to_string())?;
    Ok(Since::Ago(ago))
}

/// Writes the log.
pub(super) async fn run(socket: &Path, options: &Options) -> Result<(), Failure> {
    let object = options.target.pod.object(socket).await?;
    let target = Target::of(&object, options)?;
    let since = match options.since {
        Some(Since::Ago(ago)) => Timestamp::now().checked_sub(ago).ok(),
        Some(Since::Time(time)) => Some(time),
        None => None,
    };
    let mut changes = options.follow.then(|| watch(&target)).transpose()?;
    let select = Select { since, tail: options.tail };
    let mut file = LogFile::open(&target.root, &target.path, select).map_err(not_readable)?;
    let mut printer = Printer { options, lines: Lines::default(), failed: None };
    printer.print_new(&mut file)?;
    while let Some(changes) = &mut changes {
        // Asked before the last look, so that what was written before the end is seen by it.
        let changed = timeout(CHECK, changes.next()).await.is_ok();
        let ended = !changed && target.ended(socket, options).await?;
        printer.print_new(&mut file)?;
        if ended {
            break;
        }
    }
    printer.finish()
}

/// The log of one run of a container.
struct Target {
    root: PathBuf,
    path: PathBuf,
    container: String,
    run: i32,
}

impl Target {
    fn of(object: &PodObject, options: &Options) -> Result<Self, Failure> {
        let status = status(object, options.target.container.as_deref())?;
        let run = match options.previous {
            false => status.restart_count,
            true => previous_run(status).ok_or_else(|| {
                let name = &status.name;
                Failure::NotFound(format!(
                    "container `{name}` was never restarted: there is no run before this one"
                ))
            })?,
        };
        // The name of a container is a DNS label, and the directory is opened without following anything.
        let path = Path::new(&object.log_directory).join(&status.name).join(format!("{run}.log"));
        Ok(Self { root: PathBuf::from(&object.log_root), path, container: status.name.clone(), run })
    }

    /// Whether this run will write no more.
    async fn ended(&self, socket: &Path, options: &Options) -> Result<bool, Failure> {
        let object = match options.target.pod.object(socket).await {
            Ok(object) => object,
            Err(Failure::NotFound(_)) => return Ok(true),
            // The shim goes on writing while the agent is away.
            Err(Failure::NotRunning(_)) => return Ok(false),
            Err(failure) => return Err(failure),
        };
        let status = status(&object, Some(&self.container))?;
        let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
        Ok(status.restart_count != self.run || !runs)
    }
}

/// The run that `lastState` tells of: the one before, or the current one while a container waits to be started again.
/// Source: `validateContainerLogStatus` of `pkg/kubelet/kubelet_pods.go`.
fn previous_run(status: &ContainerStatus) -> Option<i32> {
    status.last_state.as_ref()?.terminated.as_ref()?;
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    Some(status.restart_count - i32::from(!waits)).filter(|run| *run >= 0)
}

fn status<'a>(object: &'a PodObject, container: Option<&str>) -> Result<&'a ContainerStatus, Failure> {
    let spec = object.pod.spec.as_ref();
    let first = spec.and_then(|spec| spec.containers.first()).map(|container| container.name.as_str());
    let wanted = container.or(first).unwrap_or_default();
    let status = object.pod.status.as_ref();
    let all: Vec<_> = status
        .map(|status| {
            let others = status.init_container_statuses.iter().chain(&status.ephemeral_container_statuses);
            status.container_statuses.iter().chain(others).flatten().collect()
        })
        .unwrap_or_default();
    let names = all.iter().map(|status| status.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = all.into_iter().find(|status| status.name == wanted);
    found.ok_or_else(|| Failure::NotFound(format!("the pod has no container `{wanted}`, only: {names}")))
}

fn watch(target: &Target) -> Result<Changes, Failure> {
    Watcher::default().watch(&target.root, &target.path).map_err(not_readable)
}

fn not_readable(error: LogFileError) -> Failure {
    let message = format!("failed to {}", with_causes(&error));
    match error {
        LogFileError::Absent(_) => Failure::NotFound(message),
        LogFileError::Astray(_) | LogFileError::Io { .. } | LogFileError::Watch { .. } => {
            Failure::Failed(message)
        }
    }
}

/// Says which parts are missing from what is shown.
fn tell_unreadable(file: &mut LogFile) {
    for error in file.take_unreadable() {
        // Without anybody to hear it, what could be read is still shown.
        drop(writeln!(io::stderr(), "berth: failed to {}; lines are missing here", with_causes(&error)));
    }
}

struct Printer<'a> {
    options: &'a Options,
    lines: Lines,
    failed: Option<io::Error>,
}

impl Printer<'_> {
    /// Prints the lines that have ended since the last time.
    fn print_new(&mut self, file: &mut LogFile) -> Result<(), Failure> {
        loop {
            let progress = file.read_block(|record| {
                if let Some(line) = self.lines.take(record) {
                    print(self.options, &line, &mut self.failed);
                }
            });
            tell_unreadable(file);
            self.check()?;
            if progress.map_err(not_readable)? == Progress::AtEnd {
                return Ok(());
            }
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.lines.finish().for_each(|line| print(self.options, &line, &mut self.failed));
        self.check()
    }

    fn check(&mut self) -> Result<(), Failure> {
        io::stdout().flush()?;
        self.failed.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

fn print(options: &Options, line: &Line, failed: &mut Option<io::Error>) {
    // Both streams to one, as kubectl does: their order is what counts.
    if let Err(error) = write(options, &mut io::stdout().lock(), line) {
        failed.get_or_insert(error);
    }
}

fn write(options: &Options, out: &mut impl Write, line: &Line) -> io::Result<()> {
    match options.output {
        TextOrJson::Json => return out.write_all(json_line(&LineObject::of(line))?.as_bytes()),
        TextOrJson::Text if options.timestamps => write!(out, "{} ", line.time)?,
        TextOrJson::Text => {}
    }
    out.write_all(&line.text)
}

/// A line as JSON. What is no UTF-8 of the text is replaced: JSON has no form for it.
#[derive(Debug, serde::Serialize)]
struct LineObject<'a> {
    time: &'a str,
    stream: &'static str,
    log: Cow<'a, str>,
}

impl<'a> LineObject<'a> {
    fn of(line: &'a Line) -> Self {
        let stream = match line.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let text = line.text.strip_suffix(b"\n").unwrap_or(&line.text);
        Self { time: &line.time, stream, log: String::from_utf8_lossy(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        options: Options,
    }

    fn printed(arguments: &[&str], file: &[u8]) -> String {
        let arguments = ["logs", "pod"].iter().chain(arguments);
        let options = <Arguments as clap::Parser>::parse_from(arguments).options;
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.feed(file, |line| write(&options, &mut out, &line).unwrap());
        lines.finish().for_each(|line| write(&options, &mut out, &line).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_previous_run_is_the_one_that_last_state_tells_of() {
        let cases = [
            (r#"{"restartCount": 0, "state": {"running": {}}}"#, None),
            (r#"{"restartCount": 0, "state": {"waiting": {}}}"#, None),
            (
                r#"{"restartCount": 0, "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}"#,
                Some(0),
            ),
            (
                r#"{"restartCount": 3, "state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 1}}}"#,
                Some(3),
            ),
            (
                r#"{"restartCount": 3, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}"#,
                Some(2),
            ),
            (
                r#"{"restartCount": 1, "state": {"terminated": {"exitCode": 0}}, "lastState": {"terminated": {"exitCode": 1}}}"#,
                Some(0),
            ),
        ];
        for (text, run) in cases {
            let text =
                text.replacen('{', r#"{"name": "c", "image": "i", "imageID": "", "ready": false, "#, 1);
            assert_eq!(previous_run(&serde_json::from_str(&text).unwrap()), run, "{text}");
        }
    }

    #[test]
    fn a_line_is_shown_as_asked_for() {
        let file = b"2026-11-21T08:00:00.1Z stdout P one \n\
            2026-11-21T08:00:00.2Z stderr F \xff\x1b[2J\n\
            2026-11-21T08:00:00.30Z stdout F line\n\
            2026-11-21T08:00:01Z stdout F \n\
            2026-11-21T08:00:02Z stdout P \"cut\"\n";
        assert_eq!(
            printed(&["-o", "json"], file),
            r#"{"time":"2026-11-21T08:00:00.2Z","stream":"stderr","log":"�\u001b[2J"}
{"time":"2026-11-21T08:00:00.1Z","stream":"stdout","log":"one line"}
{"time":"2026-11-21T08:00:01Z","stream":"stdout","log":""}
{"time":"2026-11-21T08:00:02Z","stream":"stdout","log":"\"cut\""}
"#
        );
        assert_eq!(
            printed(&["--timestamps"], &file[file.len() - 71..]),
            "2026-11-21T08:00:01Z \n2026-11-21T08:00:02Z \"cut\""
        );
    }
}
