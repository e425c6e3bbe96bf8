mod fake;
mod groups;
mod work;
