//! The shim on its own, under a stock containerd and `ctr`.

use anyhow::{Result, ensure};
use berth_integration::containerd::{ctr, ctr_command};

use crate::stock::{IMAGE, RUNTIME, Stock};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("shim::ctr_runs_a_container_without_a_sandbox", ctr_runs),
        test("shim::ctr_runs_many_at_once", many),
    ]
}

fn ctr_runs() -> Result<()> {
    let stock = Stock::start()?;
    let cgroup = format!("{}/one", stock.world.cgroup());
    let run = ["run", "--rm", "--runtime", RUNTIME, "--cgroup", &cgroup, IMAGE];
    let said = ctr(&[&run[..], &["one", "/bin/echo", "hello"]].concat())?;
    same("echo", said.as_str(), "hello\n")?;
    let failed = ctr_command()?.args(run).args(["two", "sh", "-c", "echo oops >&2; exit 7"]).output()?;
    same("exit code", failed.status.code(), Some(7))?;
    ensure!(String::from_utf8_lossy(&failed.stderr).contains("oops"), "stderr: {failed:?}");

    ctr(&["run", "--detach", "--runtime", RUNTIME, "--cgroup", &cgroup, IMAGE, "three", "sleep", "100"])?;
    // It is started before it has become its program.
    let look = "until grep -x sleep /proc/1/comm; do :; done";
    let said = ctr(&["tasks", "exec", "--exec-id", "e", "three", "sh", "-c", look])?;
    same("exec", said.as_str(), "sleep\n")?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", "three"])?;
    ctr(&["tasks", "rm", "--force", "three"])?;
    ctr(&["containers", "rm", "three"])?;
    stock.end()
}

fn many() -> Result<()> {
    const COUNT: usize = 5;
    let stock = Stock::start()?;
    let mut running = Vec::new();
    for number in 0..COUNT {
        let cgroup = format!("{}/{number}", stock.world.cgroup());
        let mut run = ctr_command()?;
        run.args(["run", "--rm", "--runtime", RUNTIME, "--cgroup", &cgroup, IMAGE, &number.to_string()]);
        running.push(run.args(["sh", "-c", &format!("exit {number}")]).spawn()?);
    }
    for (number, mut run) in running.into_iter().enumerate() {
        same("exit code", run.wait()?.code(), i32::try_from(number).ok())?;
    }
    stock.end()
}
