//! Tasks that are saved and go on elsewhere, with `ctr` and criu.

use std::fs;

use anyhow::{Result, ensure};
use berth_integration::containerd::{ctr, ctr_command};
use berth_integration::vm::Feature;
use berth_integration::wait::{self, Look};

use crate::kit::SOON;
use crate::stock::{Stock, agreed_on, remove};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("checkpoint::a_task_goes_on_where_it_was_saved", goes_on).needs(Feature::Checkpoints),
        test("checkpoint::a_task_that_cannot_be_saved_goes_on", cannot_be_saved),
    ]
}

const SAVED: &str = "localhost/saved:1";
/// Counts in memory; the file only shows it.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i > /count; sleep 0.05; done";

fn goes_on() -> Result<()> {
    let stock = Stock::start()?;
    stock.run_detached(&[], "one", COUNT)?;
    count_beyond("one", 20)?;
    ctr(&["containers", "checkpoint", "--rw", "--task", "one", SAVED])?;
    let before = agreed_on("one", "RUNNING")?;
    count_beyond("one", count("one")?)?;
    remove("one")?;

    // `ctr` leaves its pipes behind when it goes; the count needs none.
    ctr(&["containers", "restore", "--rw", "--live", "one", SAVED])?;
    let after = agreed_on("one", "RUNNING")?;
    ensure!(before != after, "the process {before} was never ended");
    let first = count("one")?;
    ensure!(first >= 20, "it began again, and is at {first}");
    count_beyond("one", first)?;
    remove("one")?;
    ctr(&["images", "rm", SAVED])?;
    stock.end()
}

/// The streams are pipes that belong to `ctr`, which criu cannot save.
fn cannot_be_saved() -> Result<()> {
    let stock = Stock::start()?;
    let mut run = stock.run(&[], "one", &["sh", "-c", COUNT])?.spawn()?;
    count_beyond("one", 1)?;
    let images = stock.world.root().join("images");
    let save =
        ctr_command()?.args(["tasks", "checkpoint", "--image-path"]).arg(&images).arg("one").output()?;
    let said = String::from_utf8_lossy(&save.stderr);
    ensure!(!save.status.success() && said.contains("pipe"), "ctr said {said:?}, {}", save.status);
    ensure!(
        !fs::exists(&images)? || fs::read_dir(&images)?.next().is_none(),
        "something was left in {images:?}"
    );
    count_beyond("one", count("one")?)?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", "one"])?;
    same("exit code", run.wait()?.code(), Some(137))?;
    remove("one")?;
    stock.end()
}

fn count(id: &str) -> Result<u64> {
    let mut said = String::new();
    wait::until("a count", SOON, || {
        // The file is empty for a moment each time.
        said = ctr(&["tasks", "exec", "--exec-id", "count", id, "cat", "/count"])?;
        Ok(if said.ends_with('\n') { Look::Ready(()) } else { Look::NotYet(said.clone()) })
    })?;
    Ok(said.trim().parse()?)
}

fn count_beyond(id: &str, than: u64) -> Result<()> {
    wait::until(&format!("{id} to count beyond {than}"), SOON, || {
        let text =
            ctr_command()?.args(["tasks", "exec", "--exec-id", "look", id, "cat", "/count"]).output()?;
        let said = String::from_utf8_lossy(&text.stdout).into_owned();
        let reached = said.trim().parse::<u64>().is_ok_and(|count| count > than);
        Ok(if reached { Look::Ready(()) } else { Look::NotYet(said) })
    })
}
