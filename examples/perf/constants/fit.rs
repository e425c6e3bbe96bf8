//! Arithmetic of measuring: medians, slopes, and the constant with which the clock says what was measured.

/// The value in the middle; 0 where there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What one more of something takes: two amounts, and the times for them. None where more took no longer, as on a
/// machine that is busy with something else.
pub fn slope(amounts: [f64; 2], times: [f64; 2]) -> Option<f64> {
    let each = (times[1] - times[0]) / (amounts[1] - amounts[0]);
    (each.is_finite() && each > 0.0).then_some(each)
}

/// Where between `low` and `high` a function that grows comes to `target`; an end where it does not get there.
///
/// # Errors
/// Those of the function.
pub fn solve<E>(
    (mut low, mut high): (f64, f64),
    target: f64,
    mut function: impl FnMut(f64) -> Result<f64, E>,
) -> Result<f64, E> {
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        match function(middle)? < target {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok((low + high) / 2.0)
}

/// Halvings of the range.
const STEPS: u32 = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_more_takes_is_found_or_not() {
        assert_eq!(slope([10.0, 30.0], [25.0, 65.0]), Some(2.0));
        assert_eq!(slope([10.0, 30.0], [65.0, 25.0]), None);
        assert_eq!(slope([10.0, 10.0], [1.0, 2.0]), None);
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(Vec::new())), (2.0, 0.0));
    }

    #[test]
    fn equations_are_solved_within_their_range() {
        let square = |x: f64| Ok::<f64, ()>(x * x);
        let near = |target: f64, x: f64| (solve((0.0, 10.0), target, square).expect("no error") - x).abs() < 1e-6;
        assert!(near(9.0, 3.0) && near(-5.0, 0.0) && near(1e6, 10.0));
    }
}
