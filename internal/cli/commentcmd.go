package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/internal/github"
	"github.com/trtship/trtship/report"
)

// commentFlags are the flags of comment.
type commentFlags struct {
	from     string
	baseline string
	until    string
	key      string
	author   string
	print    bool
}

func newCommentCmd(a *app) *cobra.Command {
	var f commentFlags
	c := &cobra.Command{
		Use:     "comment --from REPORT",
		Short:   "Post a report to its pull request",
		GroupID: "ci",
		Long: `comment posts a report.json as the sticky comment of a pull request. It is the
second half of the two-workflow mode for forks: the first workflow runs the
model's code with a token that can only read and uploads the report; the second
one, on workflow_run, runs nothing of the fork and posts it.

The pull request is that of the event, found by the commit and the repository
that the event names, never by what the report says. The report is judged again,
and its texts are treated as foreign. The exit code is 0 when the comment was
posted, whatever it says.`,
		Args: positional(0, 0),
		RunE: func(c *cobra.Command, _ []string) error { return a.comment(c.Context(), f) },
	}
	p := c.Flags()
	p.StringVar(&f.from, "from", "", "report.json (or run's `folder`) to post")
	p.StringVar(&f.baseline, "baseline", "", "report.json (or run's `folder`) to compare with")
	p.StringVar(&f.until, "until", "", "the bound that the workflow itself set on the run (`stage`)")
	p.StringVar(&f.key, "key", "", "`text` that tells comments apart; the model's name by default")
	p.StringVar(&f.author, "author", "github-actions[bot]", "`login` under which the token writes")
	p.BoolVar(&f.print, "print", false, "print the Markdown instead of posting it")
	return c
}

func (a *app) comment(ctx context.Context, f commentFlags) error {
	if f.from == "" {
		return failure.New(failure.Usage, "--from REPORT is needed").WithHint("give the report.json of the run to post; nothing else says which one is meant")
	}
	head, err := a.readReport(f.from)
	if err != nil {
		return err
	}
	var base *report.Report
	if f.baseline != "" {
		if base, err = a.readReport(f.baseline); err != nil {
			return err
		}
	}
	v := report.View{Report: head, Baseline: base, Gate: gate.Judge(head, base, gate.Options{Until: f.until, Source: "file"})}
	key := f.key
	if key == "" {
		key = head.Model.Name
	}
	if f.print {
		return a.put(report.Markdown(v, report.MarkdownOptions{Marker: github.Marker(key)}))
	}
	env := github.ReadEnv(a.io.Getenv)
	ev, err := github.ReadEvent(env)
	if err != nil {
		return failure.New(failure.Usage, "%w", err)
	}
	v.Links = report.Links{Run: env.RunURL(), Commit: ev.HeadSHA}
	address, err := github.PostComment(ctx, env, ev, key, f.author, v, github.Action{})
	if err != nil {
		return failure.New(failure.Missing, "post comment: %w", err).WithHint("run on workflow_run or pull_request, with GITHUB_TOKEN and `permissions: {pull-requests: write}`")
	}
	return a.put(escape(address) + "\n")
}
