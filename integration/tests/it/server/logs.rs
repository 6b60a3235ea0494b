//! `kubectl logs` in all its forms.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use berth_integration::files;
use berth_integration::wait::{self, Look};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::kubectl::ended;
use super::{DOORS, Door, Served, at_doors, doors, read_until};
use crate::api_pods::path;
use crate::kit::{FOR_EVER, SOON, shell};
use crate::suite::same;

/// What has been started twice.
const TOLD: &str = "told";
/// What speaks when it is let.
const PACED: &str = "paced";
/// Lines of a turn: with their times more than a log may have before it is rotated.
const TURN: usize = 300;
const TURNS: usize = 6;
/// More than a turn has.
const TAIL: usize = 350;

/// The pods.
pub(super) fn create(served: &Served) -> Result<()> {
    let twice = "test -e /v/again && { echo second run; exec sleep infinity; }
        touch /v/again; for i in 1 2 3 4 5; do echo line $i; done; printf no-end; exit 1";
    let kept = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    let other = shell("other", &format!("echo out; echo err >&2; {FOR_EVER}"), json!({}));
    let spec = json!({
        "containers": [shell("main", twice, kept), other],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    });
    served.create(TOLD, spec)?;
    let paced = format!(
        "exec 3<>{DOORS}/{PACED}; turn=0
        while read _ <&3; do
            turn=$((turn + 1)); [ $turn -le {TURNS} ] || exit 0; line=0
            while [ $line -lt {TURN} ]; do
                line=$((line + 1)); echo turn $turn line $line: {padding}
            done
        done",
        padding = "x".repeat(80)
    );
    let main = shell("main", &paced, json!({ "volumeMounts": at_doors() }));
    let early = format!("echo early; read _ <{DOORS}/late; echo late; {FOR_EVER}");
    let since = shell("since", &early, json!({ "volumeMounts": at_doors() }));
    let spec = json!({ "restartPolicy": "Never", "containers": [main, since], "volumes": doors() });
    for door in ["late", PACED] {
        Door::make(door)?;
    }
    served.create(PACED, spec)
}

fn logs(served: &Served, args: &[&str]) -> Result<String> {
    served.cluster.kubectl(&[&["logs"], args].concat())
}

/// What a command that fails has said.
fn refused(served: &Served, args: &[&str]) -> Result<String> {
    let done = served.cluster.command(&[&["logs"], args].concat())?.output()?;
    ensure!(!done.status.success(), "kubectl logs {args:?} did not fail");
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Waits until the pod has been started twice and its second run has spoken.
fn told_twice(served: &Served) -> Result<()> {
    let is_second = |pod: &Value| {
        let all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        all.filter(|one| one["name"] == "main")
            .any(|one| one["restartCount"] == 1 && one["state"]["running"].is_object())
    };
    served.cluster.wait_for(&path(TOLD), "in its second run", is_second)?;
    wait::until("the second run to speak", SOON, || {
        let said = logs(served, &[TOLD, "-c", "main"])?;
        Ok(if said == "second run\n" { Look::Ready(()) } else { Look::NotYet(said) })
    })
}

pub(super) fn options(served: &Served) -> Result<()> {
    told_twice(served)?;
    let previous = |more: &[&str]| logs(served, &[&[TOLD, "-c", "main", "--previous"], more].concat());
    let all = "line 1\nline 2\nline 3\nline 4\nline 5\nno-end";
    same("--previous", previous(&[])?.as_str(), all)?;
    same("--tail=2", previous(&["--tail=2"])?.as_str(), "line 5\nno-end")?;
    same("--tail=0", previous(&["--tail=0"])?.as_str(), "")?;
    same("--tail=100", previous(&["--tail=100"])?.as_str(), all)?;
    same("--limit-bytes=10", previous(&["--limit-bytes=10"])?.as_str(), "line 1\nlin")?;
    same("both", previous(&["--tail=2", "--limit-bytes=4"])?.as_str(), "line")?;
    same("--since=1h", previous(&["--since=1h"])?.as_str(), all)?;
    let with_times = previous(&["--timestamps"])?;
    for line in with_times.lines() {
        let (time, _) = line.split_once(' ').with_context(|| format!("no time in {line:?}"))?;
        time.parse::<Timestamp>().with_context(|| format!("no time in {line:?}"))?;
    }
    let without: String =
        with_times.split_inclusive('\n').filter_map(|line| Some(line.split_once(' ')?.1)).collect();
    same("lines behind the times", without.as_str(), all)?;
    let absent = refused(served, &[TOLD, "-c", "absent"])?;
    ensure!(absent.contains("absent"), "{absent}");
    let never = refused(served, &[TOLD, "-c", "other", "--previous"])?;
    ensure!(never.contains("previous terminated container \"other\" in pod \"told\" not found"), "{never}");
    Ok(())
}

pub(super) fn several(served: &Served) -> Result<()> {
    told_twice(served)?;
    let prefixed = ["[pod/told/main] second run", "[pod/told/other] err", "[pod/told/other] out"];
    let sorted = |said: String| {
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let all = sorted(logs(served, &[TOLD, "--all-containers", "--prefix"])?);
    same("--all-containers", all, prefixed.map(str::to_owned).to_vec())?;
    let of_label = sorted(logs(served, &["--selector", "app=told", "--all-containers", "--prefix"])?);
    same("--selector", of_label, prefixed.map(str::to_owned).to_vec())?;
    let tails = sorted(logs(served, &["--selector", "app=told", "--all-containers", "--tail=0"])?);
    same("--selector --tail=0", tails, Vec::<String>::new())
}

/// Times are asked for in whole seconds, so the second line is of another second than the first.
pub(super) fn since(served: &Served) -> Result<()> {
    let mut late = Door::at("late")?;
    served.ready(PACED)?;
    let of = |more: &[&str]| logs(served, &[&[PACED, "-c", "since"], more].concat());
    let line = wait::until("the first line", SOON, || {
        let said = of(&["--timestamps"])?;
        Ok(if said.ends_with(" early\n") { Look::Ready(said) } else { Look::NotYet(said) })
    })?;
    let first: Timestamp = line.split(' ').next().context("no time")?.parse()?;
    wait::until("another second", SOON, || {
        let is_other = Timestamp::now().as_second() > first.as_second();
        Ok(if is_other { Look::Ready(()) } else { Look::NotYet("the same".to_owned()) })
    })?;
    let between = Timestamp::from_second(Timestamp::now().as_second())?.to_string();
    late.open()?;
    wait::until("the second line", SOON, || {
        let said = of(&[])?;
        Ok(if said == "early\nlate\n" { Look::Ready(()) } else { Look::NotYet(said) })
    })?;
    let since = format!("--since-time={between}");
    same("--since-time", of(&[&since])?.as_str(), "late\n")?;
    same("--since-time and --tail", of(&[&since, "--tail=5"])?.as_str(), "late\n")?;
    same("--since-time in the future", of(&["--since-time=2199-01-01T00:00:00Z"])?.as_str(), "")
}

/// Each turn makes a log that is rotated; whoever follows sees every line once, and the end.
pub(super) fn followed(served: &Served) -> Result<()> {
    let mut door = Door::at(PACED)?;
    let mut follower = served
        .cluster
        .command(&["logs", PACED, "-c", "main", "--follow"])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut out = follower.stdout.take().context("stdout")?;
    let mut said = String::new();
    for turn in 1..=TURNS {
        door.open()?;
        said += &read_until(&mut out, &format!("turn {turn} line {TURN}: "))?;
    }
    // The container ends, and so does who follows it.
    door.open()?;
    std::io::Read::read_to_string(&mut out, &mut said)?;
    same("kubectl logs --follow", ended(&mut follower, "kubectl logs")?, Some(0))?;
    let lines = said.lines().map(|line| line.split(':').next().unwrap_or_default().to_owned());
    let wanted = (1..=TURNS).flat_map(|turn| (1..=TURN).map(move |line| format!("turn {turn} line {line}")));
    let (lines, wanted): (Vec<_>, Vec<_>) = (lines.collect(), wanted.collect());
    let first = lines.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
    let shown = first.map(|at| (&lines[at], &wanted[at]));
    ensure!(lines == wanted, "{} lines of {}, the first other one is {shown:?}", lines.len(), wanted.len());
    let rotated = files::list(served.logs())?;
    let dir = rotated.iter().find(|dir| dir.to_string_lossy().contains("default_paced"));
    let kept = files::list(dir.context("no logs of the pod")?.join("main"))?;
    // A kubelet looks every few seconds whether a log is too long.
    ensure!(kept.len() > 1 || served.kubelet.is_some(), "no log was rotated: {kept:?}");
    // What is left of it can be asked for after the end, through the files that were rotated.
    let tail = logs(served, &[PACED, "-c", "main", &format!("--tail={TAIL}")])?;
    let tail: Vec<_> =
        tail.lines().map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect();
    // A kubelet reads the newest file alone.
    ensure!(tail.len() == TAIL || (served.kubelet.is_some() && !tail.is_empty()), "{} lines", tail.len());
    ensure!(wanted.ends_with(&tail), "other lines: {tail:?}");
    Ok(())
}
