//! A collector of logs as nodes have them: rsyslog follows the links that `/var/log/containers` has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::components;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::process::Process;
use berth_integration::wait::{self, Look};
use serde_json::json;

use crate::kit::{pod, shell};
use crate::lives::log_dir;
use crate::suite::{Test, same, test};

/// Batches of lines in each of two runs, with a pause after each: files are rotated some times in a second, and not within the
/// milliseconds in which a collector that goes by names would miss one.
const BATCHES: usize = 40;
/// Lines of a batch.
const LINES: usize = 2_000;
/// Some 45 bytes each.
const FILE_SIZE: &str = "100Ki";
/// A line that the log has in parts.
const LONG: usize = 40_000;

pub(crate) fn tests() -> Vec<Test> {
    vec![test("tailer::every_line_comes_through_rotation_restarts_and_the_end_of_the_pod", every_line)]
}

/// A collector that writes what it reads into one file.
struct Collector {
    process: Process,
    collected: PathBuf,
}

impl Collector {
    fn start(dir: &Path) -> Result<Self> {
        fs::create_dir(dir)?;
        let (state, collected, config) = (dir.join("state"), dir.join("collected"), dir.join("rsyslog.conf"));
        fs::create_dir(&state)?;
        fs::write(&config, configuration(&state, &collected))?;
        let mut command = Command::new(components::binary("rsyslogd")?);
        command.arg("-n").arg("-f").arg(&config).arg("-i").arg(dir.join("pid"));
        let process = Process::start("rsyslogd", &mut command, &dir.join("rsyslogd.log"))?;
        Ok(Self { process, collected })
    }

    /// What it has read of one container, line by line as they were written: parts of a line are put together.
    fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.collected).unwrap_or_default();
        let mut parts: BTreeMap<&str, String> = BTreeMap::new();
        let mut lines = Vec::new();
        // The last line may not be whole yet.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut fields = line.splitn(4, ' ');
            let (Some(_), Some(stream), Some(tag), Some(said)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let part = parts.entry(stream).or_default();
            part.push_str(said);
            match tag {
                "F" => lines.push(std::mem::take(part)),
                "P" => {}
                other => anyhow::bail!("{other:?} in {line:?}: {}", self.process.log_tail()),
            }
        }
        Ok(lines)
    }
}

fn configuration(state: &Path, collected: &Path) -> String {
    format!(
        r#"global(workDirectory="{state}" maxMessageSize="64k")
module(load="imfile" mode="inotify")
template(name="line" type="string" string="%msg%\n")
ruleset(name="out") {{ action(type="omfile" file="{collected}" template="line") }}
input(type="imfile" file="/var/log/containers/lines-*.log" tag="pod" ruleset="out" escapeLF="off")
"#,
        state = state.display(),
        collected = collected.display()
    )
}

/// What the pod writes, all runs together.
fn written() -> Vec<String> {
    let run = |run: usize| {
        let first = (run - 1) * BATCHES * LINES + 1;
        (first..first + BATCHES * LINES).map(|number| number.to_string()).chain(["x".repeat(LONG)])
    };
    run(1).chain(run(2)).collect()
}

/// The pod goes with its last line: nobody waits for the collector.
fn every_line() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "containerLogMaxSize": FILE_SIZE, "containerLogMaxFiles": 10 }),
        ..Settings::default()
    })?;
    let collector = Collector::start(&node.world.root().join("collector"))?;
    let each = BATCHES * LINES;
    let write = format!(
        "n=$first; while [ $n -lt $((first + {each})) ]; do seq $n $((n + {LINES} - 1)); n=$((n + {LINES})); sleep 0.1; done; \
         head -c {LONG} /dev/zero | tr '\\0' x; echo"
    );
    let script = format!(
        "if [ -e /v/again ]; then first={}; {write}; touch /v/done; exec sleep infinity; fi; touch /v/again; first=1; {write}",
        each + 1
    );
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let main = shell("main", &script, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let volume = json!({ "name": "v", "hostPath": { "path": dir } });
    node.apply(
        "lines",
        &pod(
            "lines",
            json!({ "terminationGracePeriodSeconds": 0, "containers": [main], "volumes": [volume] }),
        ),
    )?;
    let lines = node.wait("lines", "to run again", POD_LIMIT, |pod| pod.restarts("main") == 1)?;
    wait::until("all to be written", POD_LIMIT, || {
        let is_written = dir.join("done").exists();
        Ok(if is_written { Look::Ready(()) } else { Look::NotYet(names(&log_dir(&lines)).join(" ")) })
    })?;
    let end = names(&log_dir(&lines));
    node.remove("lines")?;
    let compressed = end.iter().filter(|name| name.ends_with(".gz")).count();
    ensure!(compressed >= 5, "too little was rotated to prove anything: {end:?}");
    node.gone("lines")?;
    let expected = written();
    let read = wait::until("all to be collected", Duration::from_secs(30), || {
        let read = collector.lines()?;
        let is_there = read.len() >= expected.len();
        Ok(if is_there {
            Look::Ready(read)
        } else {
            Look::NotYet(format!("{} of {}", read.len(), expected.len()))
        })
    })?;
    let wrong = read.iter().zip(&expected).position(|(read, written)| read != written);
    ensure!(
        wrong.is_none(),
        "out of place: {wrong:?}: {:?}",
        wrong.map(|at| &read[at.saturating_sub(2)..][..4])
    );
    same("lines", read.len(), expected.len())?;
    collector.process.stop().context("end the collector")?;
    node.end()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
