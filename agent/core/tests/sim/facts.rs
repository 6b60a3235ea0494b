//! What of the node changes while it has pods.

use std::time::Duration;

use berth_core::{
    config::{NodeFacts, ResolvConf},
    effect::{Act, Effect},
    event::Event,
    id::PodUid,
};

use crate::{pods, run::Run};

/// What the containers that were started since the last look find in a file of theirs.
fn files(run: &mut Run, ending: &str) -> Vec<String> {
    let told = std::mem::take(&mut run.told);
    let starts = told.iter().filter_map(|effect| match effect {
        Effect::Pod { act: Act::StartContainer(request), .. } => Some(&request.plan.files),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    starts.flatten().filter(|file| file.path.ends_with(ending)).map(|file| file.content.clone()).collect()
}

/// An agent that was up before the node had name servers gives them to the pods that come after, and those that came
/// before have waited for them.
#[test]
fn pods_are_prepared_from_the_node_as_it_is_then() {
    let mut run = Run::new();
    let facts = |resolv_conf| NodeFacts {
        ips: vec!["192.0.2.9".parse().unwrap()],
        hostname: "node".into(),
        resolv_conf,
        hosts: "192.0.2.9 node\n".into(),
    };
    let missing = ResolvConf::Unreadable("open /etc/resolv.conf: No such file or directory".into());
    run.handle(Event::NodeFacts(facts(missing)));
    run.want(pods::pod("early", &["early"]));
    run.settle();
    assert!(files(&mut run, "resolv.conf").is_empty());
    assert!(run.world.sandboxes.is_empty() && run.world.networks.is_empty(), "begun without a resolv.conf");

    let text = ResolvConf::Text("nameserver 198.51.100.7\n".into());
    run.handle(Event::NodeFacts(facts(text.clone())));
    let mut late = pods::pod("late", &["late"]);
    late.network = berth_core::spec::NetworkMode::Node;
    run.want(late);
    run.advance(Duration::from_secs(60), Run::settle);
    let told = run.told.clone();
    assert_eq!(files(&mut run, "resolv.conf"), ["nameserver 198.51.100.7\n"; 2]);
    run.told = told;
    let hosts = files(&mut run, "etc-hosts");
    assert!(hosts.iter().any(|text| text.contains("192.0.2.9 node\n")), "{hosts:?}");
    let status = run.world.statuses.values().find(|status| status.name.name == "early").unwrap();
    assert_eq!(status.host_ips, facts(text.clone()).ips);

    run.handle(Event::NodeFacts(facts(text)));
    assert!(run.told.is_empty(), "what is known already was told: {:?}", run.told);
}

/// What the node is costs a question for each of its interfaces.
#[test]
fn it_is_asked_for_before_something_is_done_and_not_before_a_look() {
    let mut run = Run::new();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let look = run.node.poll_timeout().expect("each pod is looked at");
    assert!(!run.node.asks_for_facts(look));
    for _crash in 0..2 {
        let id = run.world.running(&PodUid::new("uid-web"), "main").expect("it runs");
        let now = run.now;
        run.world.exit(&id, 1, now);
        run.settle();
    }
    assert!(!run.node.asks_for_facts(run.now.mono), "it waits before it runs again");
    assert!(run.node.asks_for_facts(run.now.mono + Duration::from_secs(10)), "it is started again");
}
