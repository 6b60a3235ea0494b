//! How the agent comes back: how soon it tells the API what it has missed, and that its node stays ready.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::NODE_NAME;
use berth_integration::cluster::{AuditEvent, Cluster};
use berth_integration::control::Control;
use berth_integration::node::Node;
use jiff::Timestamp;

use crate::api_pods::{condition, path};
use crate::kit::{beside, measured, said_at};

/// How often others look at a pod from the start of an agent to its first request, and from there until it tells that the pod has ended.
/// They ask the agent and then the API server, ten times in a second, and less often where one of these has no time.
const LOOKS_UNTIL_ASKED: usize = 60;
const LOOKS_UNTIL_TOLD: usize = 30;
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// What the agent says when it finds that pods cannot be wired, which a machine that is too busy to read a file makes it find.
const UNWIRED: &str = "network is not ready";

/// How the agent came back.
pub(super) struct Return {
    /// The pod that had ended while it was away.
    pub(super) falls: String,
    /// When it was started.
    pub(super) begun: Timestamp,
    /// How long after its first answer the API was as the agent shows pods, but for those that come and go.
    pub(super) right_after: Duration,
}

/// Does something while others look at a pod again and again.
pub(super) fn while_looked_at<T>(
    cluster: &Cluster,
    pod: &str,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let control = Control::new()?;
    let look = move || {
        // What they are answered is nothing to them.
        drop(control.overview());
        drop(cluster.get_json(&path(pod)));
    };
    beside(LOOK_PAUSE, look, body)
}

/// The API is soon told of what ended while the agent was away: after half of the returns at least, as a busy machine may hold each of
/// them up. A node that was ready stays so.
pub(super) fn check_returns(audit: &[AuditEvent], node: &Node, returns: &[Return]) -> Result<()> {
    let looks = returns.iter().map(|back| looks(audit, back)).collect::<Result<Vec<[usize; 2]>>>()?;
    let right: Vec<Duration> = returns.iter().map(|back| back.right_after).collect();
    let figure = format!(
        "the API was right {right:?} after the agent's first answers; others looked {looks:?} times until its first \
         request, and from there until it told of ends"
    );
    measured(&figure);
    let is_soon = |looks: &&[usize; 2]| looks[0] <= LOOKS_UNTIL_ASKED && looks[1] <= LOOKS_UNTIL_TOLD;
    let soon = looks.iter().filter(is_soon).count();
    ensure!(soon * 2 >= looks.len(), "{figure}");
    stays_ready(audit, node, returns)
}

/// How often others looked at what had ended: from the start of an agent to its first request, and from there until it told of the end.
fn looks(audit: &[AuditEvent], Return { falls, begun, .. }: &Return) -> Result<[usize; 2]> {
    let mut since = Vec::new();
    for event in audit {
        let at = received(event)?;
        if at >= *begun {
            since.push((at, event));
        }
    }
    let by_node = || since.iter().filter(|(_, event)| event.is_by_node(NODE_NAME));
    let asked = by_node().map(|(at, _)| *at).min().context("the agent asked nothing")?;
    let tells = |event: &AuditEvent| {
        let phase = event.request_object.as_ref().map(|object| &object["status"]["phase"]);
        event.is("patch", "pods/status")
            && event.name() == falls
            && phase.is_some_and(|phase| phase == "Failed")
    };
    let told = by_node().find(|(_, event)| tells(event)).map(|(at, _)| *at);
    let told = told.with_context(|| format!("{falls} was not told to have ended"))?;
    let by_others = since.iter().filter(|(_, event)| !event.is_by_node(NODE_NAME));
    let is_look = |event: &AuditEvent| event.is("get", "pods") && event.name() == falls;
    let looks = by_others.filter(|(_, event)| is_look(event)).map(|(at, _)| *at);
    let looks: Vec<Timestamp> = looks.collect();
    ensure!(!looks.is_empty(), "nobody looked at {falls}");
    let within = |time: RangeInclusive<Timestamp>| looks.iter().filter(|at| time.contains(*at)).count();
    Ok([within(*begun..=asked), within(asked..=told)])
}

fn received(event: &AuditEvent) -> Result<Timestamp> {
    event.request_received_timestamp.parse().context("the time of a request")
}

/// No agent tells that a node that was ready is not, but one that says that its network is not ready: half of them at most.
fn stays_ready(audit: &[AuditEvent], node: &Node, returns: &[Return]) -> Result<()> {
    ensure!(audit.iter().any(|event| says_ready(event) == Some(true)), "the node was never told to be ready");
    let unwired = said_at(node.agent.log(), UNWIRED)?;
    let all = flips(audit)?;
    let mut excused = 0;
    for (number, back) in returns.iter().enumerate() {
        let next = returns.get(number + 1).map(|next| next.begun);
        let is_of_it = |at: Timestamp| at >= back.begun && next.is_none_or(|next| at < next);
        let flips: Vec<&Timestamp> = all.iter().filter(|at| is_of_it(**at)).collect();
        if flips.is_empty() {
            continue;
        }
        let is_excused = unwired.iter().any(|at| is_of_it(*at));
        ensure!(is_excused, "the agent of {} told at {flips:?} that its node is not ready", back.begun);
        excused += 1;
    }
    ensure!(excused * 2 <= returns.len(), "{excused} of {} agents had no network", returns.len());
    Ok(())
}

/// When the node was told not to be ready after it had been told to be.
fn flips(audit: &[AuditEvent]) -> Result<Vec<Timestamp>> {
    let (mut was_ready, mut flips) = (false, Vec::new());
    for event in audit {
        let Some(is_ready) = says_ready(event) else { continue };
        if was_ready && !is_ready {
            flips.push(received(event)?);
        }
        was_ready = is_ready;
    }
    Ok(flips)
}

/// Whether the node is ready by what the API server made of its word, if that was one about it.
fn says_ready(event: &AuditEvent) -> Option<bool> {
    let is_word = event.is("create", "nodes") || event.is("patch", "nodes/status");
    let is_taken = event.is_by_node(NODE_NAME) && (200..300).contains(&event.code());
    let object = event.response_object.as_ref().filter(|_| is_word && is_taken)?;
    Some(condition(object, "Ready")?["status"] == "True")
}
