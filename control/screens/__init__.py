"""The design system of both sides' pages: shell, tables, charts, figures."""
