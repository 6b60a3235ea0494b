//! Random orders of requests, outcomes, exits and time, against the promises that the machine makes.
//!
//! The world below is the reference: it knows which processes really live, answers effects in any order and at any
//! time, reaps before or after a spawn is reported, and checks every effect as it comes.

mod told;
mod world;

use berth_shim_core::Origin;
use proptest::prelude::*;
use world::{Step, World};

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_u8).prop_map(|task| Step::Create(task, Origin::Bundle)),
        2 => (0..3_u8).prop_map(|task| Step::Create(task, Origin::Checkpoint)),
        4 => (0..3_u8).prop_map(Step::Start),
        2 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::AddExec(task, exec)),
        3 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::StartExec(task, exec)),
        2 => (0..3_u8).prop_map(Step::Kill),
        1 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::KillExec(task, exec)),
        2 => (0..3_u8).prop_map(Step::Wait),
        1 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::WaitExec(task, exec)),
        3 => (0..3_u8).prop_map(Step::Delete),
        1 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::DeleteExec(task, exec)),
        2 => (0..3_u8).prop_map(Step::Pause),
        1 => (0..3_u8).prop_map(Step::Resume),
        1 => (0..3_u8).prop_map(Step::Update),
        2 => (0..3_u8).prop_map(Step::Checkpoint),
        1 => (0..3_u8, 0..2_u8).prop_map(|(task, exec)| Step::State(task, exec)),
        1 => (0..3_u8).prop_map(Step::ExecStream),
        1 => (0..3_u8).prop_map(Step::Shutdown),
        2 => (0..3_u8, prop::option::of(0..3000_u64)).prop_map(|(task, timeout)| Step::ExecSync(task, timeout)),
        1 => (0..8_u8).prop_map(Step::Disconnect),
        1 => Just(Step::Reconnect),
        1 => any::<prop::sample::Index>().prop_map(Step::SaveAndEnd),
        6 => any::<prop::sample::Index>().prop_map(Step::Succeed),
        2 => any::<prop::sample::Index>().prop_map(Step::Fail),
        3 => any::<prop::sample::Index>().prop_map(Step::Drained),
        5 => any::<prop::sample::Index>().prop_map(Step::Exit),
        5 => any::<prop::sample::Index>().prop_map(Step::Reap),
        1 => (0..3_u8).prop_map(Step::Oom),
        2 => (0..2500_u64).prop_map(Step::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_in_any_order_of_events(
        steps in prop::collection::vec(step(), 0..120),
        sandbox in any::<bool>(),
        stopped in any::<bool>(),
        stop in any::<prop::sample::Index>(),
    ) {
        let mut world = World::new();
        if sandbox {
            world.start_sandbox();
        }
        let (before, after) = steps.split_at(stop.index(steps.len() + 1));
        for step in before {
            world.take(step.clone());
            // By itself, since its client went away.
            if world.ended() {
                return Ok(());
            }
        }
        if stopped {
            world.take(Step::StopSandbox);
        }
        for step in after {
            world.take(step.clone());
            // By itself, since its client went away.
            if world.ended() {
                return Ok(());
            }
        }
        world.come_to_rest();
        if world.ended() {
            return Ok(());
        }
        world.check_a_stopped_sandbox_is_empty();
        world.settle();
        if world.ended() {
            return Ok(());
        }
        world.check_everything_is_answered();
        world.shut_down();
    }
}
