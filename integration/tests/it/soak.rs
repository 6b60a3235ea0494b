//! Trouble for as long as is asked for, very many pods, an API server that is away for long, and certificates that end: `scripts/soak` runs
//! these, `scripts/test` leaves them out.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, io};

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::{STATE_DIR, Settings};
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};

use crate::chaos::{Churn, Dice, kill_shims};
use crate::kit::{SOON, eventually, sleeper};
use crate::suite::{Test, test};
use crate::{api_away, certificates_end, large_image, server};

/// Minutes of trouble.
const MINUTES: &str = "BERTH_SOAK_MINUTES";
/// Where it is told how far they are.
const REPORT: &str = "BERTH_SOAK_REPORT";

/// Pods that come and go.
const CHURNED: usize = 10_000;
/// Pods at a time.
const WAVE: usize = 20;
/// Pods after which the agent has all that it will ever need.
const WARM: usize = 1_000;
/// Pods between two looks at the agent.
const LOOK: usize = 500;
/// By how much its memory may differ from one look to another: pages that the allocator has not given back, kibibytes.
const RSS_SLACK_KIB: u64 = 2_048;
/// Turns after which everybody must agree again.
const TURNS: usize = 12;
const SHIM_KILLS: usize = 3;
/// Beside the trouble itself: the components' start, and what the last period takes.
const AROUND: Duration = Duration::from_secs(15 * 60);
const CHURN_LIMIT: Duration = Duration::from_secs(3 * 3600);
/// Twelve minutes of a certificate's life and of what follows it.
const CERTIFICATES_LIMIT: Duration = Duration::from_secs(20 * 60);

pub(crate) fn tests() -> Vec<Test> {
    let Some(minutes) = minutes() else { return Vec::new() };
    vec![
        test("soak::trouble", trouble).within(minutes + AROUND),
        test("soak::ten_thousand_pods", ten_thousand_pods).within(CHURN_LIMIT),
        test("soak::cluster_ten_minutes_without_the_api_server", server_away).within(AROUND),
        test("soak::cluster_seven_minutes_cut_off", cut_off).within(AROUND),
        test("soak::certificates_that_end_while_the_node_runs", certificates_end::node_runs)
            .within(CERTIFICATES_LIMIT),
        test("soak::certificates_that_ended_while_the_agent_was_away", certificates_end::agent_away)
            .within(CERTIFICATES_LIMIT),
        test("soak::image_of_twenty_gibibytes", large_image::soak).within(CHURN_LIMIT),
        test("soak::server_ten_gigabytes_through_one_command", server::ten_gigabytes).within(AROUND),
    ]
}

fn server_away() -> Result<()> {
    api_away::server_away(Duration::from_secs(600))
}

/// With the controllers' own patience: 50 s without a lease, 300 s of toleration, and a minute more.
fn cut_off() -> Result<()> {
    api_away::node_cut_off(&[], 300, Duration::from_secs(60))
}

fn minutes() -> Option<Duration> {
    let minutes: u64 = env::var(MINUTES).ok()?.parse().ok()?;
    Some(Duration::from_secs(minutes * 60))
}

/// Where lines for the reader go.
struct Report(Box<dyn io::Write>);

impl Report {
    fn open() -> Result<Self> {
        let Some(path) = env::var_os(REPORT).map(PathBuf::from) else {
            return Ok(Self(Box::new(io::stderr())));
        };
        let file = File::options().append(true).create(true).open(&path);
        Ok(Self(Box::new(file.with_context(|| format!("open {}", path.display()))?)))
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.0, "{line}").context("write the report")
    }
}

/// What the agent holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) rss_kib: u64,
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
}

impl Held {
    /// What it holds without pods, once the workers of the last ones have ended: how many there are depends on the moment.
    pub(crate) fn at_rest(node: &Node) -> Result<Self> {
        let workers = Path::new(STATE_DIR).join("workers");
        eventually("workers at rest to end", &0, || Ok(fs::read_dir(&workers)?.count()))?;
        Self::by(node)
    }

    pub(crate) fn by(node: &Node) -> Result<Self> {
        let pid = node.agent.pid().context("no agent")?;
        let count = |what: &str| Ok::<_, anyhow::Error>(fs::read_dir(format!("/proc/{pid}/{what}"))?.count());
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        Ok(Self {
            rss_kib: rss.context("no VmRSS")?.parse()?,
            descriptors: count("fd")?,
            threads: count("task")?,
        })
    }
}

/// What was done in a soak.
#[derive(Debug, Default)]
struct Told {
    periods: usize,
    agents: usize,
    containerds: usize,
    shims: usize,
}

/// Agents, containerds and shims die while pods come and go, again and again. In every second period no shim dies, so that no
/// container may have been started twice.
fn trouble() -> Result<()> {
    let limit = minutes().context("no minutes")?;
    let began = Instant::now();
    let seed = env::var("SEED").unwrap_or_else(|_unset| "1".to_owned());
    let mut dice = Dice::of(&seed)?;
    let mut report = Report::open()?;
    let mut told = Told::default();
    let mut churn = Churn::start()?;
    while began.elapsed() < limit {
        let with_shims = told.periods % 2 == 1;
        for _turn in 0..TURNS {
            churn.turn(&mut dice)?;
            dice.rest();
            strike(&mut churn, &mut dice, with_shims, &mut told)?;
        }
        churn.settled(with_shims).with_context(|| format!("seed {seed}, {told:?}"))?;
        let held = Held::by(&churn.node)?;
        churn.begin_anew().with_context(|| format!("seed {seed}, {told:?}"))?;
        told.periods += 1;
        let minutes = began.elapsed().as_secs() / 60;
        report.say(&format!("soak: {minutes} min, {} pods, {told:?}, {held:?}", churn.made))?;
    }
    ensure!(told.agents > 0 && told.containerds > 0, "nothing was in trouble: {told:?}");
    churn.node.end()
}

fn strike(churn: &mut Churn, dice: &mut Dice, with_shims: bool, told: &mut Told) -> Result<()> {
    let node = &mut churn.node;
    let (agent, containerd) = match dice.below(if with_shims { 5 } else { 4 }) {
        0 | 1 => (true, false),
        2 => (false, true),
        3 => (true, true),
        _ => {
            kill_shims(dice, SHIM_KILLS, |_| true)?;
            told.shims += SHIM_KILLS;
            return Ok(());
        }
    };
    if containerd {
        node.containerd.kill()?;
        told.containerds += 1;
    }
    if agent {
        node.agent.kill()?;
        told.agents += 1;
    }
    dice.rest();
    // An agent that begins before containerd waits for it.
    let early = agent && dice.below(2) == 0;
    if early {
        node.agent.start_doomed("")?;
        dice.rest();
    }
    if containerd {
        node.containerd.start_again()?;
    }
    if agent && !early {
        node.agent.start()?;
    }
    wait::until("the agent to answer", SOON, || {
        Ok(node.pods().map_or_else(|failure| Look::NotYet(format!("{failure:#}")), |_pods| Look::Ready(())))
    })
}

/// What the agent holds depends on the pods that there are, not on those that there were.
fn ten_thousand_pods() -> Result<()> {
    let mut report = Report::open()?;
    let node = Node::start_with(&Settings::default())?;
    let mut warm: Option<Held> = None;
    let began = Instant::now();
    for first in (0..CHURNED).step_by(WAVE) {
        let names: Vec<String> = (first..first + WAVE).map(|number| format!("pod-{number}")).collect();
        for name in &names {
            node.apply(name, &sleeper(name))?;
        }
        for name in &names {
            node.ready(name)?;
        }
        node.remove_manifests()?;
        for name in &names {
            node.gone(name)?;
        }
        let done = first + WAVE;
        if done.is_multiple_of(LOOK) {
            let held = Held::at_rest(&node)?;
            report.say(&format!("soak: {done} pods in {} s, {held:?}", began.elapsed().as_secs()))?;
            if done >= WARM {
                let warm = *warm.get_or_insert(held);
                ensure!(
                    held.rss_kib <= warm.rss_kib + RSS_SLACK_KIB,
                    "after {done} pods {held:?}, at first {warm:?}"
                );
                ensure!(
                    held.descriptors <= warm.descriptors,
                    "after {done} pods {held:?}, at first {warm:?}"
                );
            }
        }
    }
    node.end()
}
