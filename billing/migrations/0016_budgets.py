import base.ids
import billing.models.budgets
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0015_money_in'),
    ]

    operations = [
        migrations.AddField(
            model_name='budget',
            name='carried',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='hold',
            name='windows',
            field=models.TextField(blank=True, help_text="Names of the budgets' windows that it counts in.", null=True),
        ),
        migrations.AddField(
            model_name='usagerecord',
            name='windows',
            field=models.TextField(blank=True, help_text="Names of the budgets' windows that it counts in.", null=True),
        ),
        migrations.AddField(
            model_name='wallet',
            name='windows',
            field=models.TextField(blank=True, db_default='', default='', editable=False, help_text='Windows of budgets used of late: name to [spent, held, limit, hard] as JSON.'),
        ),
        migrations.AlterField(
            model_name='hold',
            name='budget',
            field=models.UUIDField(blank=True, help_text='Written by the release before this alone.', null=True),
        ),
        migrations.CreateModel(
            name='BudgetWindow',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('number', models.IntegerField(help_text='Of the budget.')),
                ('start', models.BigIntegerField(help_text='The minute since 1970 with which it begins.')),
                ('spent', models.BigIntegerField()),
                ('held', models.BigIntegerField()),
                ('carried', models.BigIntegerField(db_default=0, help_text='Of `spent`, what the release before this counted.')),
                ('wallet', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='billing.wallet')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('wallet', 'number', 'start'), name='budget_window_once')],
            },
        ),
        migrations.CreateModel(
            name='SpendBudget',
            fields=[
                ('id', models.UUIDField(default=base.ids.uuid7, editable=False, primary_key=True, serialize=False)),
                ('tenant', models.UUIDField(help_text='Whose wallet it is: gateways hear by it of a change.')),
                ('number', models.IntegerField()),
                ('name', models.CharField(blank=True, max_length=80)),
                ('scope', models.CharField(choices=[('tenant', 'Tenant'), ('project', 'Project'), ('key', 'Key'), ('member', 'Member'), ('end_user', 'End User'), ('models', 'Models')], max_length=10)),
                ('subject', models.CharField(blank=True, help_text='Id of the project, key or member, digest of the end user, names of models a line each.', max_length=2000)),
                ('window', models.CharField(choices=[('day', 'Day'), ('week', 'Week'), ('month', 'Month'), ('total', 'Total')], max_length=10)),
                ('anchor', models.DateTimeField(help_text='Where one of its windows begins.')),
                ('time_zone', models.CharField(default='UTC', max_length=60)),
                ('amount', models.BigIntegerField(blank=True, help_text='µcr; empty: no limit.', null=True)),
                ('is_hard', models.BooleanField(default=True)),
                ('thresholds', models.JSONField(blank=True, default=billing.models.budgets.usual_thresholds, help_text='Percent of the limit that are told.')),
                ('by_operator', models.BooleanField(default=False, help_text='Set by the operator, who is told too.')),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('removed_at', models.DateTimeField(blank=True, null=True)),
                ('wallet', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.PROTECT, related_name='spend_budgets', to='billing.wallet')),
            ],
            options={
                'ordering': ['number'],
                'indexes': [models.Index(fields=['scope', 'subject'], name='spend_budget_subject')],
                'constraints': [models.UniqueConstraint(fields=('wallet', 'number'), name='spend_budget_number'), models.UniqueConstraint(fields=('wallet', 'scope', 'subject', 'window', 'anchor', 'time_zone', 'is_hard', 'by_operator'), name='spend_budget_once'), models.CheckConstraint(condition=models.Q(('amount', None), ('amount__gte', 0), _connector='OR'), name='spend_budget_not_negative')],
            },
        ),
    ]
